//! In what kind of container or pod this process runs, which decides what can be enforced.

use belljar_sys::cgroup::Surroundings;
use belljar_sys::privileges;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Posture {
    /// No container.
    Machine,
    /// A container whose root is root of the machine, with the right to mount.
    Privileged,
    /// Root with the right to mount, in a user namespace: a pod with `hostUsers: false` and capabilities.
    UserNamespace,
    /// A container without the right to mount.
    Unprivileged,
}

impl Posture {
    pub(super) fn here() -> Posture {
        let is_container = Surroundings::read().is_ok_and(|seen| seen.is_container());
        let may_mount = privileges::is_root() && privileges::may_mount();
        Posture::of(is_container, may_mount, privileges::in_user_namespace())
    }

    fn of(is_container: bool, may_mount: bool, in_user_namespace: bool) -> Posture {
        match (is_container, may_mount, in_user_namespace) {
            (_, true, true) => Posture::UserNamespace,
            (true, true, false) => Posture::Privileged,
            (true, false, _) => Posture::Unprivileged,
            (false, ..) => Posture::Machine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_posture() {
        let of = Posture::of;
        assert_eq!(of(false, true, false), Posture::Machine);
        assert_eq!(of(false, false, false), Posture::Machine, "an ordinary user");
        assert_eq!(of(false, false, true), Posture::Machine);
        assert_eq!(of(true, true, false), Posture::Privileged);
        assert_eq!(of(true, true, true), Posture::UserNamespace);
        assert_eq!(of(false, true, true), Posture::UserNamespace);
        assert_eq!(of(true, false, false), Posture::Unprivileged);
        assert_eq!(of(true, false, true), Posture::Unprivileged);
    }
}
