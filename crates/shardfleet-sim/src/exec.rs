//! Runs the tasks of all simulated processes on one thread, in virtual time.
//!
//! Time stands still while tasks run and jumps to the next timer when none can. The order of everything that happens at the same time is that in which it
//! was asked for, so a run is the same each time. A process can be frozen (its tasks are not polled, while its timers run on, as for a stopped
//! operating-system process) or killed (its tasks are dropped at whatever await they had come to).

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering as Atomic};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Virtual time in microseconds since the start of the run.
pub(crate) type Micros = u64;

/// One second of it.
pub(crate) const SECOND: Micros = 1_000_000;
/// One millisecond of it.
pub(crate) const MILLI: Micros = 1_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Event = Box<dyn FnOnce()>;

struct TaskSlot {
    owner: usize,
    /// Not here while it is being polled.
    future: Option<Task>,
    waker: Arc<TaskWaker>,
}

struct TaskWaker {
    number: usize,
    is_queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

#[derive(Default)]
struct ReadyQueue(Mutex<VecDeque<usize>>);

impl ReadyQueue {
    fn push(&self, task: usize) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(task);
    }

    fn pop(&self) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Atomic::Relaxed) {
            self.ready.push(self.number);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum OwnerState {
    Running,
    /// The tasks that would have run meanwhile.
    Frozen(Vec<usize>),
    Dead,
}

enum Due {
    Wake(Rc<RefCell<Option<Waker>>>),
    Event(Event),
}

struct Timer {
    at: Micros,
    sequence: u64,
    due: Due,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// The tasks, the timers and the time.
#[derive(Default)]
pub(crate) struct Executor {
    now: Cell<Micros>,
    sequence: Cell<u64>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    tasks: RefCell<Vec<Option<TaskSlot>>>,
    ready: Arc<ReadyQueue>,
    owners: RefCell<Vec<OwnerState>>,
}

impl Executor {
    pub(crate) fn now(&self) -> Micros {
        self.now.get()
    }

    /// A new owner of tasks.
    pub(crate) fn add_owner(&self) -> usize {
        let mut owners = self.owners.borrow_mut();
        owners.push(OwnerState::Running);
        owners.len() - 1
    }

    pub(crate) fn spawn(&self, owner: usize, future: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let number = tasks.len();
        let waker = Arc::new(TaskWaker {
            number,
            is_queued: AtomicBool::new(true),
            ready: Arc::clone(&self.ready),
        });
        tasks.push(Some(TaskSlot {
            owner,
            future: Some(Box::pin(future)),
            waker,
        }));
        self.ready.push(number);
    }

    /// Runs `event` at `at`, whatever becomes of the process that asked for it.
    pub(crate) fn at(&self, at: Micros, event: impl FnOnce() + 'static) {
        self.push(at, Due::Event(Box::new(event)));
    }

    fn push(&self, at: Micros, due: Due) {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        let at = at.max(self.now.get());
        self.timers
            .borrow_mut()
            .push(Reverse(Timer { at, sequence, due }));
    }

    pub(crate) fn freeze(&self, owner: usize) {
        let state = &mut self.owners.borrow_mut()[owner];
        if *state == OwnerState::Running {
            *state = OwnerState::Frozen(Vec::new());
        }
    }

    /// What the owner's tasks missed is delivered now, in order.
    pub(crate) fn thaw(&self, owner: usize) {
        let state = &mut self.owners.borrow_mut()[owner];
        if let OwnerState::Frozen(missed) = state {
            for task in missed.drain(..) {
                self.ready.push(task);
            }
            *state = OwnerState::Running;
        }
    }

    pub(crate) fn kill(&self, owner: usize) {
        self.owners.borrow_mut()[owner] = OwnerState::Dead;
        let dropped: Vec<TaskSlot> = {
            let mut tasks = self.tasks.borrow_mut();
            let of_owner = |slot: &&mut Option<TaskSlot>| {
                slot.as_ref()
                    .is_some_and(|task| task.owner == owner && task.future.is_some())
            };
            tasks
                .iter_mut()
                .filter(of_owner)
                .filter_map(Option::take)
                .collect()
        };
        drop(dropped);
    }

    /// Forgets all tasks and timers: they hold what holds this.
    pub(crate) fn clear(&self) {
        let tasks = self.tasks.take();
        let timers = self.timers.take();
        drop(tasks);
        drop(timers);
    }

    /// Runs one task, or lets time pass until the next timer; `false` when nothing is left to do until `end`.
    pub(crate) fn step(&self, end: Micros) -> bool {
        if let Some(task) = self.ready.pop() {
            self.poll(task);
            return true;
        }
        let timer = {
            let mut timers = self.timers.borrow_mut();
            match timers.peek() {
                Some(Reverse(timer)) if timer.at <= end => timers.pop(),
                _ => None,
            }
        };
        let Some(Reverse(timer)) = timer else {
            self.now.set(end);
            return false;
        };
        self.now.set(timer.at);
        match timer.due {
            Due::Wake(waker) => {
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
            }
            Due::Event(event) => event(),
        }
        true
    }

    fn poll(&self, number: usize) {
        let (owner, mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(slot) = tasks[number].as_mut() else {
                return;
            };
            match &mut self.owners.borrow_mut()[slot.owner] {
                OwnerState::Running => {}
                // It stays marked as queued, so it is noted once.
                OwnerState::Frozen(missed) => return missed.push(number),
                OwnerState::Dead => return,
            }
            let Some(future) = slot.future.take() else { return };
            slot.waker.is_queued.store(false, Atomic::Relaxed);
            (slot.owner, future, Arc::clone(&slot.waker))
        };
        let waker = Waker::from(waker);
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        let is_over = poll.is_ready() || self.owners.borrow()[owner] == OwnerState::Dead;
        let mut tasks = self.tasks.borrow_mut();
        if is_over {
            tasks[number] = None;
        } else if let Some(slot) = tasks[number].as_mut() {
            slot.future = Some(future);
            return;
        }
        drop(tasks);
        drop(future);
    }
}

/// Waits until `at`.
pub(crate) struct Sleep {
    executor: Rc<Executor>,
    at: Micros,
    waker: Option<Rc<RefCell<Option<Waker>>>>,
}

pub(crate) fn sleep_until(executor: &Rc<Executor>, at: Micros) -> Sleep {
    Sleep {
        executor: Rc::clone(executor),
        at,
        waker: None,
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.executor.now() >= self.at {
            return Poll::Ready(());
        }
        if let Some(waker) = &self.waker {
            waker.replace(Some(context.waker().clone()));
        } else {
            let waker = Rc::new(RefCell::new(Some(context.waker().clone())));
            self.executor.push(self.at, Due::Wake(Rc::clone(&waker)));
            self.waker = Some(waker);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            waker.take();
        }
    }
}
