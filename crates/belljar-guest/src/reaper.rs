//! Reaps every child that ends, including orphans, as PID 1 must.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use belljar_sys::process::{self, Ended};
use belljar_sys::procfs;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Reaps processes and publishes how those that are watched ended.
#[derive(Debug, Clone)]
pub(crate) struct Reaper {
    waiting: Rc<RefCell<HashMap<u32, watch::Sender<Option<Ended>>>>>,
}

/// The end of a process, which any number of tasks can wait for.
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

    /// Reaps all children that have ended, including those whose signal the event loop has not delivered
    /// yet.
    pub(crate) fn collect(&self) {
        while let Some((pid, ended)) = process::reap_any() {
            if let Some(sender) = self.waiting.borrow_mut().remove(&pid) {
                sender.send_replace(Some(ended));
            }
        }
    }

    /// Watches a process. Must be called before control returns to the event loop after the process was
    /// started; otherwise its end may have been reaped already.
    pub(crate) fn watch(&self, pid: u32) -> End {
        let (sender, receiver) = watch::channel(None);
        self.waiting.borrow_mut().insert(pid, sender);
        End(receiver)
    }

    /// Watches an orphan that became our child; `None` if it was reaped.
    pub(crate) fn adopt(&self, pid: u32) -> Option<End> {
        // Nothing is reaped in between: that happens on the same thread.
        procfs::start_time(pid).is_ok().then(|| self.watch(pid))
    }

    /// Processes that a task waits for. They do not count as orphans.
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
            // The sender was dropped: after it had sent a value, or because a new process with the same pid
            // replaced it. Both mean that this one has ended.
            Err(_) => Ended::Exited(0),
        }
    }
}
