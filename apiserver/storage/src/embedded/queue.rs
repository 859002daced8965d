//! A closable queue between async callers and one or several threads. The callers bound it: each holds a
//! semaphore permit for what it has put in.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, PoisonError},
    time::Instant,
};

use crate::{StoreError, present::lock};

pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
}

struct Inner<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new(Inner { items: VecDeque::new(), closed: false }), wake: Condvar::new() }
    }

    /// Appends an item, unless the queue is closed.
    pub(super) fn push(&self, item: T) -> Result<(), StoreError> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return Err(StoreError::Closed);
        }
        inner.items.push_back(item);
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits until there is an item, the time has come or the queue is closed; then takes items from the
    /// front for as long as `fits` says so. `None` once it is closed and empty.
    pub(super) fn take(&self, until: Option<Instant>, mut fits: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
        let mut inner = lock(&self.inner);
        while inner.items.is_empty() && !inner.closed {
            inner = match until.map(|t| t.saturating_duration_since(Instant::now())) {
                Some(rest) if rest.is_zero() => return Some(Vec::new()),
                Some(rest) => self.wake.wait_timeout(inner, rest).unwrap_or_else(PoisonError::into_inner).0,
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
        if inner.items.is_empty() {
            return None;
        }
        let count = inner.items.iter().take_while(|item| fits(item)).count();
        Some(inner.items.drain(..count).collect())
    }

    /// Refuses further items; those inside can still be taken.
    pub(super) fn close(&self) {
        lock(&self.inner).closed = true;
        self.wake.notify_all();
    }

    /// Closes and drops what is inside.
    pub(super) fn abandon(&self) {
        self.close();
        let items = std::mem::take(&mut lock(&self.inner).items);
        drop(items);
    }
}
