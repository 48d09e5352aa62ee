//! Measuring a worker's load: files of several kernels, the container agent's documents, and everything that can be wrong with both.

mod ecs;
mod faults;
mod files;
mod odd_input;
mod rows;
mod sampling;
mod selection;
mod settings;
mod support;
