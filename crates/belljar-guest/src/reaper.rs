//! PID 1 must collect every child that ends, its own and the orphans of everybody else.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use belljar_sys::process::{self, Ended};
use belljar_sys::procfs;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells those who ask how a process ended.
#[derive(Debug, Clone)]
pub(crate) struct Reaper {
    waiting: Rc<RefCell<HashMap<u32, watch::Sender<Option<Ended>>>>>,
}

/// Resolves when a process has ended; can be asked any number of times.
#[derive(Debug, Clone)]
pub(crate) struct End(watch::Receiver<Option<Ended>>);

impl Reaper {
    pub(crate) fn start() -> io::Result<Reaper> {
        let mut children = signal(SignalKind::child())?;
        let reaper = Reaper { waiting: Rc::default() };
        let collector = reaper.clone();
        tokio::task::spawn_local(async move {
            loop {
                children.recv().await;
                collector.collect();
            }
        });
        Ok(reaper)
    }

    /// Collects all that have ended, also those whose signal the event loop has yet to hand on.
    pub(crate) fn collect(&self) {
        while let Some((pid, ended)) = process::reap_any() {
            if let Some(sender) = self.waiting.borrow_mut().remove(&pid) {
                sender.send_replace(Some(ended));
            }
        }
    }

    /// Must be called before control returns to the event loop after the process was started, or
    /// its end may have been collected already.
    pub(crate) fn watch(&self, pid: u32) -> End {
        let (sender, receiver) = watch::channel(None);
        self.waiting.borrow_mut().insert(pid, sender);
        End(receiver)
    }

    /// Watches a process that became our child without our doing; `None` if it was collected.
    pub(crate) fn adopt(&self, pid: u32) -> Option<End> {
        // Nothing is collected while we look: that happens on the same thread.
        procfs::start_time(pid).is_ok().then(|| self.watch(pid))
    }

    /// Processes that somebody waits for: not orphans, whatever their parent is.
    pub(crate) fn watched(&self) -> Vec<u32> {
        self.waiting.borrow().keys().copied().collect()
    }
}

impl End {
    /// How it ended, if it has.
    pub(crate) fn now(&self) -> Option<Ended> {
        *self.0.borrow()
    }

    pub(crate) async fn ended(&self) -> Ended {
        let mut receiver = self.0.clone();
        match receiver.wait_for(Option::is_some).await {
            Ok(ended) => (*ended).unwrap_or(Ended::Exited(0)),
            // The sender is only dropped with a value, or replaced by a process of the same
            // number, which means that this one ended.
            Err(_) => Ended::Exited(0),
        }
    }
}
