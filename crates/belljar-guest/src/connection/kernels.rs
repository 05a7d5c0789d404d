//! Requests about kernels: start, wait for, inspect and snapshot.

use std::rc::Rc;

use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Refusal, RefusalCode, SpillAsk, ZygoteOrder};

use crate::kernel::{Kernel, not_started};
use crate::reply::{Reply, refuse};
use crate::{Guest, zygote};

pub(super) fn spawn(
    guest: &Rc<Guest>,
    language: Language,
    argv: &[String],
    env: &[(String, String)],
    cwd: &str,
) -> Result<Reply, Refusal> {
    Kernel::spawn(guest, language, argv, env, cwd)
        .map(|()| Answer::Done.into())
        .map_err(|error| not_started(argv, &error))
}

/// Starts the loader of a kernel, which gets its memory from the host.
pub(super) fn load(
    guest: &Rc<Guest>,
    language: Language,
    argv: &[String],
) -> Result<Reply, Refusal> {
    Kernel::load(guest, language, argv)
        .map(|socket| Reply::with_fd(Answer::SnapshotSocket, socket))
        .map_err(|error| not_started(argv, &error))
}

pub(super) async fn fork(
    guest: Rc<Guest>,
    language: Language,
    order: ZygoteOrder,
    env: Vec<(String, String)>,
    cwd: String,
) -> Result<Reply, Refusal> {
    zygote::fork(&guest, language, &order, &env, &cwd).await?;
    Ok(Answer::Done.into())
}

/// Replies when the kernel is ready.
pub(super) async fn ready(guest: Rc<Guest>, language: Language) -> Result<Reply, Refusal> {
    let language_version = live(&guest, language)?
        .ready()
        .await
        .map_err(|reason| refuse(RefusalCode::NoKernel, format!("the kernel {reason}")))?;
    Ok(Answer::KernelReady { language_version }.into())
}

pub(super) async fn state(guest: Rc<Guest>, language: Language) -> Result<Reply, Refusal> {
    let body = live(&guest, language)?.state().await?;
    Ok(Reply::with_body(Answer::State, body))
}

pub(super) async fn spill(
    guest: Rc<Guest>,
    language: Language,
    ask: SpillAsk,
) -> Result<Reply, Refusal> {
    let body = live(&guest, language)?.spill(ask).await?;
    Ok(Reply::with_body(Answer::Spilled, body))
}

pub(super) async fn snapshot_socket(
    guest: Rc<Guest>,
    language: Language,
) -> Result<Reply, Refusal> {
    let socket = live(&guest, language)?.snapshot_socket(&guest).await?;
    Ok(Reply::with_fd(Answer::SnapshotSocket, socket))
}

/// The next cell reports that an earlier kernel was lost, and why.
pub(super) fn lose(guest: &Guest, language: Language, reason: String) -> Result<Reply, Refusal> {
    guest.lost_kernel.borrow_mut().insert(language.kernel(), reason);
    Ok(Answer::Done.into())
}

/// The kernel that runs cells of this language, if there is one.
pub(super) fn live(guest: &Guest, language: Language) -> Result<Rc<Kernel>, Refusal> {
    let language = language.kernel();
    let kernel = guest.kernels.borrow().get(&language).cloned();
    kernel.ok_or_else(|| {
        let why = guest.lost_kernel.borrow().get(&language).map(|reason| format!(": it {reason}"));
        let why = why.unwrap_or_default();
        refuse(RefusalCode::NoKernel, format!("there is no live kernel{why}"))
    })
}
