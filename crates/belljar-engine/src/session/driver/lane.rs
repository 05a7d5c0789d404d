//! The queue before a kernel: one execution has it, the others wait in the order they came.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::exec::{Exec, Stage};

/// An execution that waits, and the sender that starts its performer. If the sender is dropped, it is not performed.
type Waiting = (Arc<Exec>, oneshot::Sender<()>);

/// The executions of one kernel.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The execution that has the kernel.
    holder: Option<String>,
    waiting: VecDeque<Waiting>,
}

impl Lane {
    /// Puts an execution at the end of the queue; `go` starts it when its turn has come, perhaps at once.
    pub(super) fn enter(&mut self, exec: Arc<Exec>, go: oneshot::Sender<()>) {
        self.waiting.push_back((exec, go));
        self.advance();
    }

    /// An execution has the kernel already: an earlier server started it.
    pub(super) fn hold(&mut self, exec_id: &str) {
        self.holder = Some(exec_id.to_owned());
    }

    /// Removes an execution that waits. Those behind it move up when it [leaves](Lane::leave).
    pub(super) fn take_back(&mut self, exec_id: &str) -> Option<Waiting> {
        let index = self.waiting.iter().position(|(other, _)| other.id == exec_id)?;
        self.waiting.remove(index)
    }

    /// An execution is over, whether it had the kernel or was waiting still.
    pub(super) fn leave(&mut self, exec_id: &str) {
        // It may have been waiting still: taken back, or not accepted.
        self.waiting.retain(|(waiting, _)| waiting.id != exec_id);
        if self.holder.as_deref() == Some(exec_id) {
            self.holder = None;
        }
        self.advance();
    }

    pub(super) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Gives a free kernel to the next in the queue, and updates the positions of the others.
    fn advance(&mut self) {
        while self.holder.is_none()
            && let Some((exec, go)) = self.waiting.pop_front()
        {
            // If its performer is gone, the next one gets the kernel.
            if go.send(()).is_ok() {
                self.holder = Some(exec.id.clone());
            }
        }
        for (index, (exec, _)) in self.waiting.iter().enumerate() {
            exec.stage.send_replace(Stage::Queued { position: index + 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_proto::exec::Language;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::exec::ExecRequest;

    type Turn = oneshot::Receiver<()>;

    fn enter(lane: &mut Lane, id: &str) -> (Arc<Exec>, Turn) {
        let request = ExecRequest::cell(Language::Python);
        let exec = Arc::new(Exec::new(id.into(), 1, request, Arc::from(*b"1"), 0));
        let (go, turn) = oneshot::channel();
        lane.enter(Arc::clone(&exec), go);
        (exec, turn)
    }

    fn position(exec: &Exec) -> usize {
        match exec.stage() {
            Stage::Queued { position } => position,
            stage => panic!("{} is {stage:?}", exec.id),
        }
    }

    #[test]
    fn turns_come_in_the_order_of_arrival_and_positions_count_down() {
        let mut lane = Lane::default();
        let (_, mut first) = enter(&mut lane, "a");
        let (b, mut second) = enter(&mut lane, "b");
        let (c, mut third) = enter(&mut lane, "c");
        assert_eq!(first.try_recv(), Ok(()), "the kernel was free");
        assert_eq!(second.try_recv(), Err(TryRecvError::Empty));
        assert_eq!((position(&b), position(&c), lane.waiting()), (1, 2, 2));

        lane.leave("a");
        assert_eq!(second.try_recv(), Ok(()));
        assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
        assert_eq!((position(&c), lane.waiting()), (1, 1));

        lane.leave("b");
        assert_eq!(third.try_recv(), Ok(()));
        lane.leave("c");
        assert!(!lane.is_held());
    }

    #[test]
    fn an_execution_that_is_taken_back_never_starts_and_the_others_move_up() {
        let mut lane = Lane::default();
        let _first = enter(&mut lane, "a");
        let (_, mut second) = enter(&mut lane, "b");
        let (c, mut third) = enter(&mut lane, "c");
        drop(lane.take_back("b").expect("it waits"));
        assert_eq!(second.try_recv(), Err(TryRecvError::Closed));
        assert!(lane.take_back("a").is_none(), "it has the kernel");

        lane.leave("b");
        assert_eq!(position(&c), 1);
        assert_eq!(third.try_recv(), Err(TryRecvError::Empty), "the kernel is still the first's");
        lane.leave("a");
        assert_eq!(third.try_recv(), Ok(()));
    }

    #[test]
    fn an_execution_whose_performer_is_gone_is_skipped() {
        let mut lane = Lane::default();
        lane.hold("of an earlier server");
        let (_, gone) = enter(&mut lane, "a");
        let (_, mut next) = enter(&mut lane, "b");
        drop(gone);
        lane.leave("of an earlier server");
        assert_eq!(next.try_recv(), Ok(()));
        assert_eq!(lane.waiting(), 0);
    }
}
