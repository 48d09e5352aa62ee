//! The binary as a process: killed, restarted, given bad input, and talked to by programs that know nothing of it.

mod child_handler;
mod dev_command;
mod fleet;
mod harness;
mod kill;
mod producer;
mod rest;
mod sharing;
mod tail_command;
