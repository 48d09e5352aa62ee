//! What tasks of one thread wait for besides time: flags, notices, turns, and the first of two things.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct Waiters(RefCell<Vec<Waker>>);

impl Waiters {
    fn add(&self, context: &Context<'_>) {
        let mut waiters = self.0.borrow_mut();
        if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
            waiters.push(context.waker().clone());
        }
    }

    fn wake(&self) {
        for waker in self.0.take() {
            waker.wake();
        }
    }
}

/// A notice that is kept until somebody takes it.
#[derive(Default)]
pub(crate) struct Notice {
    given: Cell<bool>,
    waiters: Waiters,
}

impl Notice {
    pub(crate) fn give(&self) {
        self.given.set(true);
        self.waiters.wake();
    }

    pub(crate) async fn taken(&self) {
        poll_fn(|context| {
            if self.given.replace(false) {
                return Poll::Ready(());
            }
            self.waiters.add(context);
            Poll::Pending
        })
        .await;
    }
}

/// Something that becomes true once.
#[derive(Default)]
pub(crate) struct Flag {
    is_set: Cell<bool>,
    waiters: Waiters,
}

impl Flag {
    pub(crate) fn set(&self) {
        if !self.is_set.replace(true) {
            self.waiters.wake();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    pub(crate) async fn raised(&self) {
        poll_fn(|context| {
            if self.is_set.get() {
                return Poll::Ready(());
            }
            self.waiters.add(context);
            Poll::Pending
        })
        .await;
    }
}

/// A state that changes, for tasks that wait until it is as they want.
#[derive(Default)]
pub(crate) struct Changes(Waiters);

impl Changes {
    pub(crate) fn tell(&self) {
        self.0.wake();
    }

    pub(crate) async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.0.add(context);
            Poll::Pending
        })
        .await
    }
}

/// Lets one task at a time do something.
#[derive(Default)]
pub(crate) struct Turns {
    is_taken: Cell<bool>,
    changes: Changes,
}

pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(crate) async fn next(&self) -> Turn<'_> {
        self.changes
            .until(|| (!self.is_taken.replace(true)).then_some(()))
            .await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
        self.0.changes.tell();
    }
}

/// Which of two came first.
pub(crate) enum First<A, B> {
    Left(A),
    Right(B),
}

/// The first of two, the left one if both are there. The other one is dropped where it stands.
pub(crate) async fn first<A: Future, B: Future>(left: A, right: B) -> First<A::Output, B::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        if let Poll::Ready(value) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}

/// All of them at the same time; their answers in the order of the futures.
pub(crate) async fn all<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Some(future), None)).collect();
    poll_fn(move |context| {
        let mut is_over = true;
        for (future, answer) in &mut running {
            if let Some(running) = future {
                match running.as_mut().poll(context) {
                    Poll::Ready(value) => {
                        *answer = Some(value);
                        *future = None;
                    }
                    Poll::Pending => is_over = false,
                }
            }
        }
        if !is_over {
            return Poll::Pending;
        }
        Poll::Ready(
            running
                .iter_mut()
                .filter_map(|(_, answer)| answer.take())
                .collect(),
        )
    })
    .await
}
