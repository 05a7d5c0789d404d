//! Turns the [`policy`] into a seccomp program for Linux.
//!
//! The program has two parts. Our own short prelude kills processes that use a foreign ABI: another audit architecture,
//! or x32, which shares the audit number of x86_64 and which seccompiler does not check. It also answers ENOSYS to
//! calls for which programs have a fallback, and to calls newer than our tables. The second part is the allow-list,
//! compiled by seccompiler, which answers EPERM to the rest.

mod policy;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};

use crate::arch::native;
use policy::{ABSENT, ALLOWED, CONDITIONAL, Test};

#[derive(Debug, thiserror::Error)]
#[error("failed to compile the seccomp policy")]
pub struct CompileError(#[source] seccompiler::BackendError);

/// The compiled filter, ready to be installed.
#[derive(Debug, Clone)]
pub struct Filter(BpfProgram);

impl Filter {
    /// The policy for everything that runs inside a sandbox, the guest included.
    ///
    /// Compiled once per process: the spawner asks for it before its first clone, and every
    /// sandbox inherits the result.
    pub fn sandbox() -> Result<&'static Self, CompileError> {
        static COMPILED: OnceLock<Filter> = OnceLock::new();
        if let Some(filter) = COMPILED.get() {
            return Ok(filter);
        }
        let mut program = prelude();
        program.extend(allow_list().map_err(CompileError)?);
        Ok(COMPILED.get_or_init(|| Filter(program)))
    }

    /// Refuses modes with set-user-id or set-group-id bits. To be installed before the policy, which forbids further filters.
    ///
    /// `openat2` has its mode behind a pointer, which a filter cannot read, so the call is absent; programs have a fallback.
    pub fn no_set_ids() -> Result<&'static Self, CompileError> {
        static COMPILED: OnceLock<Filter> = OnceLock::new();
        if let Some(filter) = COMPILED.get() {
            return Ok(filter);
        }
        let mut program = vec![load(DATA_NR)];
        if let Some(number) = number("openat2") {
            program.extend([skip_unless_equal(unsigned(number)), answer(NOSYS)]);
        }
        program.extend(set_id_list().map_err(CompileError)?);
        Ok(COMPILED.get_or_init(|| Filter(program)))
    }

    /// Installs the filter for the calling thread and everything it will start.
    pub fn install(&self) -> std::io::Result<()> {
        seccompiler::apply_filter(&self.0).map_err(std::io::Error::other)
    }
}

fn number(name: &str) -> Option<i64> {
    native::SYSCALLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

fn allow_list() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for name in ALLOWED.iter().flat_map(|(_, names)| *names) {
        if let Some(number) = number(name) {
            // No rules: any arguments.
            rules.insert(number, Vec::new());
        }
    }
    for (name, _, alternatives) in CONDITIONAL {
        if let Some(number) = number(name) {
            let alternatives = alternatives
                .iter()
                .map(|tests| SeccompRule::new(conditions(tests)?))
                .collect::<Result<Vec<_>, _>>()?;
            rules.insert(number, alternatives);
        }
    }
    SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        SeccompAction::Allow,
        native::TARGET,
    )?
    .try_into()
}

/// Calls that give a file a mode, and which of their arguments that is.
const WITH_MODE: [(&str, u8); 9] = [
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("creat", 1),
    ("open", 2),
    ("openat", 3),
    ("mknod", 1),
    ("mknodat", 2),
];

fn set_id_list() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (name, argument) in WITH_MODE {
        let Some(number) = number(name) else { continue };
        let bits = [libc::S_ISUID, libc::S_ISGID].map(u64::from);
        let has = |bit| {
            let test = SeccompCondition::new(argument, Width::Dword, Op::MaskedEq(bit), bit)?;
            SeccompRule::new(vec![test])
        };
        rules.insert(number, bits.into_iter().map(has).collect::<Result<_, _>>()?);
    }
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        native::TARGET,
    )?
    .try_into()
}

fn conditions(tests: &[(u8, Test)]) -> Result<Vec<SeccompCondition>, seccompiler::BackendError> {
    tests
        .iter()
        .map(|(argument, test)| match *test {
            Test::Is(v) => SeccompCondition::new(*argument, Width::Dword, Op::Eq, v.into()),
            Test::IsNot(v) => SeccompCondition::new(*argument, Width::Dword, Op::Ne, v.into()),
            Test::NoneOf(bits) => {
                SeccompCondition::new(*argument, Width::Qword, Op::MaskedEq(bits), 0)
            }
            Test::Only(bits) => {
                SeccompCondition::new(*argument, Width::Dword, Op::MaskedEq(!bits), 0)
            }
        })
        .collect()
}

/// Offsets into the kernel's `struct seccomp_data`.
const DATA_NR: u32 = 0;
const DATA_ARCH: u32 = 4;

const NOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();

fn prelude() -> BpfProgram {
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    let mut program = vec![load(DATA_ARCH), skip_if_equal(native::AUDIT_ARCH), answer(KILL)];
    program.push(load(DATA_NR));
    if let Some(bit) = native::FOREIGN_ABI_BIT {
        program.extend([skip_if_below(bit), answer(KILL)]);
    }
    for number in ABSENT.iter().filter_map(|(name, _)| number(name)) {
        program.extend([skip_unless_equal(unsigned(number)), answer(NOSYS)]);
    }
    let newest = native::SYSCALLS.iter().map(|(_, number)| *number).max().unwrap_or(0);
    program.extend([skip_if_below(unsigned(newest) + 1), answer(NOSYS)]);
    program
}

fn unsigned(number: i64) -> u32 {
    u32::try_from(number).expect("system call numbers are small and positive")
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).expect("BPF opcodes have 16 bits"), jt, jf, k }
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn skip_if_equal(value: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 1, 0)
}

fn skip_unless_equal(value: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, 1)
}

fn skip_if_below(value: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value, 0, 1)
}

fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{aarch64, x86_64};

    /// Runs the program as Linux would, for one system call.
    fn verdict(arch: u32, nr: i64, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(u32::try_from(nr).unwrap().to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend(0u64.to_ne_bytes());
        args.iter().for_each(|a| data.extend(a.to_ne_bytes()));
        let word = |at: u32| {
            let at = at as usize;
            u32::from_ne_bytes(data[at..at + 4].try_into().unwrap())
        };
        let Filter(program) = Filter::sandbox().unwrap();
        let (mut pc, mut acc) = (0usize, 0u32);
        loop {
            let i = &program[pc];
            pc += 1;
            let code = u32::from(i.code);
            let jump = |yes: bool| usize::from(if yes { i.jt } else { i.jf });
            match code & 0x07 {
                libc::BPF_LD => acc = word(i.k),
                libc::BPF_ALU => {
                    assert_eq!(code & 0xf0, libc::BPF_AND);
                    acc &= i.k;
                }
                libc::BPF_JMP => match code & 0xf0 {
                    libc::BPF_JA => pc += i.k as usize,
                    libc::BPF_JEQ => pc += jump(acc == i.k),
                    libc::BPF_JGE => pc += jump(acc >= i.k),
                    libc::BPF_JGT => pc += jump(acc > i.k),
                    other => panic!("unexpected jump {other:#x}"),
                },
                libc::BPF_RET => return i.k,
                other => panic!("unexpected instruction class {other}"),
            }
        }
    }

    fn native_verdict(name: &str, args: [u64; 6]) -> u32 {
        verdict(native::AUDIT_ARCH, number(name).unwrap(), args)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const PERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const NOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    #[test]
    fn every_name_exists_on_some_architecture() {
        let known = |name: &&&str| {
            [x86_64::SYSCALLS, aarch64::SYSCALLS]
                .iter()
                .any(|table| table.iter().any(|(known, _)| known == *name))
        };
        let names = ALLOWED
            .iter()
            .flat_map(|(_, names)| *names)
            .chain(CONDITIONAL.iter().map(|(name, ..)| name))
            .chain(ABSENT.iter().map(|(name, _)| name));
        let unknown: Vec<_> = names.filter(|name| !known(name)).collect();
        assert!(unknown.is_empty(), "misspelt in the policy: {unknown:?}");
    }

    #[test]
    fn the_policy_decides_by_name_and_argument() {
        assert_eq!(native_verdict("read", [0; 6]), ALLOW);
        for name in ["mount", "unshare", "setns", "ptrace", "bpf", "keyctl", "kexec_load"] {
            assert_eq!(native_verdict(name, [0; 6]), PERM, "{name}");
        }
        assert_eq!(native_verdict("clone", [0x11, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native_verdict("clone", [0x1000_0011, 0, 0, 0, 0, 0]), PERM);
        assert_eq!(native_verdict("clone3", [0; 6]), NOSYS);
        assert_eq!(native_verdict("io_uring_setup", [0; 6]), NOSYS);
        let socket =
            |family, kind, protocol| native_verdict("socket", [family, kind, protocol, 0, 0, 0]);
        assert_eq!(socket(1, 1, 0), ALLOW);
        assert_eq!(socket(2, 0o2_000_001, 6), ALLOW);
        assert_eq!(socket(10, 2, 0), ALLOW);
        assert_eq!(socket(2, 3, 1), PERM, "a raw socket");
        assert_eq!(socket(2, 1, 262), PERM, "MPTCP");
        assert_eq!(socket(2, 2, 136), PERM, "UDP-Lite");
        assert_eq!(native_verdict("sched_setscheduler", [1, 5, 0, 0, 0, 0]), PERM, "of PID 1");
        assert_eq!(native_verdict("setpriority", [2, 0, 19, 0, 0, 0]), PERM, "of a whole user");
        assert_eq!(native_verdict("setpriority", [0, 0, 19, 0, 0, 0]), ALLOW, "of oneself");
        assert_eq!(socket(16, 3, 0), ALLOW, "netlink, routing");
        assert_eq!(socket(16, 3, 6), PERM, "netlink, XFRM");
        assert_eq!(socket(38, 5, 0), PERM, "AF_ALG");
        assert_eq!(socket(0xffff_ffff_0000_0026, 5, 0), PERM, "AF_ALG behind high bits");
        assert_eq!(native_verdict("ioctl", [0, 0x5412, 0, 0, 0, 0]), PERM, "TIOCSTI");
        assert_eq!(native_verdict("ioctl", [0, 0xffff_ffff_0000_5412, 0, 0, 0, 0]), PERM);
        assert_eq!(native_verdict("ioctl", [0, 0x5401, 0, 0, 0, 0]), ALLOW, "TCGETS");
        let option = |level, name| native_verdict("setsockopt", [3, level, name, 0, 0, 0]);
        assert_eq!(option(1, 13), PERM, "SO_LINGER");
        assert_eq!(option(0xffff_ffff_0000_0001, 0xffff_ffff_0000_000d), PERM, "behind high bits");
        assert_eq!((option(1, 2), option(6, 13)), (ALLOW, ALLOW), "SO_REUSEADDR, TCP_CONGESTION");
        assert_eq!(native_verdict("prlimit64", [1, 0, 0, 0, 0, 0]), PERM);
    }

    #[test]
    fn foreign_abis_die_and_unknown_calls_are_absent() {
        assert_eq!(verdict(0x4000_0003, 1, [0; 6]), KILL, "i386");
        assert_eq!(verdict(native::AUDIT_ARCH, 4000, [0; 6]), NOSYS, "from the future");
        if let Some(bit) = native::FOREIGN_ABI_BIT {
            assert_eq!(verdict(native::AUDIT_ARCH, i64::from(bit) + 1, [0; 6]), KILL, "x32");
        }
    }
}
