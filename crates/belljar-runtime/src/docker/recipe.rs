//! The request to the engine that makes a container, as data.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType,
    ResourcesUlimits,
};

use crate::native::plan::PROC_MASKED;
use crate::spec::{SandboxSpec, paths};

/// Inside the container.
pub(super) const EXECUTABLE: &str = "/opt/belljar/belljar";
const SOCKET_DIRECTORY: &str = "/run/belljar";
pub(super) const SOCKET: &str = "host.sock";

/// Parts of `/sys` to hide: all except `/sys/fs`, where a sandbox finds its own counters.
const SYS_MASKED: [&str; 10] = [
    "block",
    "bus",
    "class",
    "dev",
    "devices",
    "firmware",
    "hypervisor",
    "kernel",
    "module",
    "power",
];

/// Labels of our containers.
pub(super) mod labels {
    /// The owner: a server over all its restarts, or one process.
    pub(crate) const OWNER: &str = "belljar.owner";
    pub(crate) const NAME: &str = "belljar.name";
    pub(crate) const NONCE: &str = "belljar.nonce";
    /// The [`TransportKind`](super::TransportKind). The label keeps its old name, because running containers
    /// have it.
    pub(crate) const TRANSPORT: &str = "belljar.door";
}

/// How the host and the guest are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransportKind {
    /// By a socket in a directory that both see: descriptors can be passed.
    Socket,
    /// By the engine, attached to the container's standard streams: works where the container has its own Linux
    /// kernel.
    Attached,
}

impl TransportKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            TransportKind::Socket => "socket",
            TransportKind::Attached => "attached",
        }
    }

    pub(super) fn of_name(name: &str) -> TransportKind {
        if name == "attached" { TransportKind::Attached } else { TransportKind::Socket }
    }
}

/// Everything that decides how a container is made.
#[derive(Debug)]
pub(super) struct Recipe<'a> {
    pub(super) spec: &'a SandboxSpec,
    pub(super) name: &'a str,
    pub(super) owner: &'a str,
    pub(super) nonce: &'a str,
    /// The prepared image, by the engine's id.
    pub(super) image: &'a str,
    pub(super) user: (u32, u32),
    pub(super) transport: TransportKind,
    /// On the host: the binary, the kernels' scripts and the directory with our socket.
    pub(super) executable: &'a Path,
    pub(super) kernels: &'a Path,
    pub(super) socket_directory: &'a Path,
    /// The directory for `/session`, if that outlives the container.
    pub(super) session: Option<&'a Path>,
    /// The directories of the volumes, in the order of the spec.
    pub(super) volumes: &'a [PathBuf],
    pub(super) runtime: Option<&'a str>,
    pub(super) gpus: Option<&'a Gpus>,
}

/// Which GPUs a sandbox may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    All,
    Count(i64),
    Devices(Vec<String>),
}

impl Gpus {
    /// The syntax of docker's `--gpus`: `all`, a number, or `device=0,1`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Gpus> {
        if text == "all" {
            return Some(Gpus::All);
        }
        if let Some(devices) = text.strip_prefix("device=") {
            let devices: Vec<String> = devices.split(',').map(str::to_owned).collect();
            return devices.iter().all(|name| !name.is_empty()).then_some(Gpus::Devices(devices));
        }
        text.parse().ok().filter(|count| *count > 0).map(Gpus::Count)
    }

    fn request(&self) -> DeviceRequest {
        let (count, device_ids) = match self {
            Gpus::All => (Some(-1), None),
            Gpus::Count(count) => (Some(*count), None),
            Gpus::Devices(devices) => (None, Some(devices.clone())),
        };
        let capabilities = Some(vec![vec!["gpu".to_owned()]]);
        DeviceRequest { count, device_ids, capabilities, ..DeviceRequest::default() }
    }
}

impl Recipe<'_> {
    pub(super) fn body(&self) -> ContainerCreateBody {
        let attached = self.transport == TransportKind::Attached;
        let mut command = vec![EXECUTABLE.to_owned(), "guest".to_owned()];
        if !attached {
            command.extend(["--dial".to_owned(), format!("{SOCKET_DIRECTORY}/{SOCKET}")]);
        }
        command.extend(["--alone-for".to_owned(), self.spec.alone_for_s.to_string()]);
        let (uid, gid) = self.user;
        let labels = [
            (labels::OWNER, self.owner),
            (labels::NAME, self.name),
            (labels::NONCE, self.nonce),
            (labels::TRANSPORT, self.transport.name()),
        ];
        let own = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        ContainerCreateBody {
            image: Some(self.image.to_owned()),
            hostname: Some("belljar".to_owned()),
            user: Some(format!("{uid}:{gid}")),
            entrypoint: Some(command),
            cmd: Some(Vec::new()),
            // Nothing of the image: each kernel and command gets its own environment.
            env: Some(Vec::new()),
            working_dir: Some(paths::SESSION.to_owned()),
            labels: Some(own.into_iter().chain(self.spec.labels.clone()).collect()),
            // The guest has nothing to clean up. As PID 1 it ignores other signals.
            stop_signal: Some("SIGKILL".to_owned()),
            open_stdin: Some(attached),
            attach_stdin: Some(attached),
            attach_stdout: Some(attached),
            host_config: Some(self.host_config()),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self) -> HostConfig {
        let limits = &self.spec.limits;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (uid, gid) = self.user;
        let (size, inodes) = (limits.effective_tmpfs(), limits.tmpfs_inodes());
        let scratch = |mode: &str, rest: &str| {
            format!("rw,nosuid,nodev,exec,size={size},nr_inodes={inodes},mode={mode}{rest}")
        };
        let mut tmpfs = HashMap::from([("/tmp".to_owned(), scratch("1777", ""))]);
        let mut mounts =
            vec![bind(self.executable, EXECUTABLE, true), bind(self.kernels, paths::KERNELS, true)];
        if self.transport == TransportKind::Socket {
            mounts.push(bind(self.socket_directory, SOCKET_DIRECTORY, true));
        }
        match self.session {
            Some(directory) => mounts.push(bind(directory, paths::SESSION, false)),
            None => {
                let own = scratch("755", &format!(",uid={uid},gid={gid}"));
                tmpfs.insert(paths::SESSION.to_owned(), own);
            }
        }
        if let Some(data) = &self.spec.data {
            mounts.push(bind(&data.host_path, paths::DATA, true));
        }
        for (volume, files) in self.spec.volumes.iter().zip(self.volumes) {
            let target = format!("{}/{}", paths::VOLUMES, volume.name);
            mounts.push(bind(files, &target, !volume.write));
        }
        HostConfig {
            network_mode: Some("none".to_owned()),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            // The engine's own seccomp filter stays; the guest adds ours.
            security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
            pids_limit: Some(number(limits.pids)),
            memory: Some(number(limits.memory)),
            // The limit includes swap, so there is none.
            memory_swap: Some(number(limits.memory)),
            nano_cpus: Some(i64::from(limits.millicpus) * 1_000_000),
            tmpfs: Some(tmpfs),
            shm_size: Some(number(size)),
            mounts: Some(mounts),
            ulimits: Some(vec![ulimit("core", 0), ulimit("nofile", 4096)]),
            oom_score_adj: Some(500),
            init: Some(false),
            ipc_mode: Some("private".to_owned()),
            // On cgroup v1, engines would otherwise show the host's cgroups.
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            masked_paths: Some(self.masked()),
            // A guest prints nothing, and when attached its output is the protocol.
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            runtime: self.runtime.map(str::to_owned),
            device_requests: self.gpus.map(|gpus| vec![gpus.request()]),
            ..HostConfig::default()
        }
    }

    /// Paths to hide. Replaces the engine's own list, and includes all of it.
    fn masked(&self) -> Vec<String> {
        let of_proc = PROC_MASKED.iter().chain(&["interrupts", "timer_stats"]);
        let mut masked: Vec<String> = of_proc.map(|name| format!("/proc/{name}")).collect();
        if self.gpus.is_none() {
            masked.extend(SYS_MASKED.map(|name| format!("/sys/{name}")));
        } else {
            // Drivers of GPUs look for their device there.
            masked.extend(["/sys/firmware", "/sys/devices/virtual/powercap"].map(str::to_owned));
        }
        masked
    }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn ulimit(name: &str, value: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{DataMount, Limits};
    use crate::volume::{VolumeKind, VolumeMount, VolumePlace};

    fn recipe<'a>(
        spec: &'a SandboxSpec,
        transport: TransportKind,
        gpus: Option<&'a Gpus>,
    ) -> Recipe<'a> {
        Recipe {
            spec,
            name: "srv.ab12.1",
            owner: "srv",
            nonce: "0123",
            image: "sha256:abc",
            user: (1000, 1000),
            transport,
            executable: Path::new("/usr/local/bin/belljar"),
            kernels: Path::new("/var/lib/belljar/kernels/1"),
            socket_directory: Path::new("/run/belljar/doors/srv.ab12.1"),
            session: None,
            volumes: &[],
            runtime: (transport == TransportKind::Attached).then_some("runsc"),
            gpus,
        }
    }

    /// Sorts maps, so that snapshots do not change.
    fn in_order(assert: impl FnOnce()) {
        let mut settings = insta::Settings::clone_current();
        settings.set_sort_maps(true);
        settings.bind(assert);
    }

    #[test]
    fn a_container_is_made_of_this() {
        let spec = SandboxSpec {
            limits: Limits::default(),
            data: Some(DataMount { host_path: "/srv/datasets".into() }),
            labels: vec![("belljar.session".into(), "ses_1".into())],
            alone_for_s: 3600,
            ..SandboxSpec::default()
        };
        in_order(|| {
            insta::assert_json_snapshot!(recipe(&spec, TransportKind::Socket, None).body());
        });
    }

    #[test]
    fn one_on_disk_with_a_kernel_of_its_own_is_made_of_this() {
        let spec = SandboxSpec::default();
        let gpus = Some(&Gpus::All);
        let recipe = Recipe {
            session: Some(Path::new("/srv/sessions/ses_1/session")),
            ..recipe(&spec, TransportKind::Attached, gpus)
        };
        in_order(|| insta::assert_json_snapshot!(recipe.body()));
    }

    #[test]
    fn volumes_are_bound_where_they_were_opened() {
        let volume = |name: &str, write| VolumeMount {
            name: name.into(),
            place: VolumePlace { directory: "/v".into(), kind: VolumeKind::Image },
            write,
        };
        let volumes = vec![volume("cache", true), volume("reference", false)];
        let spec = SandboxSpec { volumes, ..SandboxSpec::default() };
        let opened = ["/v/mounted.1/files".into(), "/v/mounted.2/files".into()];
        let recipe = Recipe { volumes: &opened, ..recipe(&spec, TransportKind::Socket, None) };
        let mounts = recipe.host_config().mounts.unwrap_or_default();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let bound: Vec<_> = mounts
            .iter()
            .filter(|mount| text(&mount.target).starts_with(paths::VOLUMES))
            .map(|mount| (text(&mount.source), text(&mount.target), mount.read_only))
            .collect();
        let expected = [
            ("/v/mounted.1/files", "/volumes/cache", Some(false)),
            ("/v/mounted.2/files", "/volumes/reference", Some(true)),
        ];
        let expected = expected.map(|(source, target, ro)| (source.into(), target.into(), ro));
        assert_eq!(bound, expected);
    }

    #[test]
    fn gpus_are_named_as_docker_names_them() {
        assert_eq!(Gpus::parse("all"), Some(Gpus::All));
        assert_eq!(Gpus::parse("2"), Some(Gpus::Count(2)));
        assert_eq!(Gpus::parse("device=0,1"), Some(Gpus::Devices(vec!["0".into(), "1".into()])));
        for nonsense in ["", "0", "-1", "some", "device=", "device=0,,1"] {
            assert_eq!(Gpus::parse(nonsense), None, "{nonsense}");
        }
    }
}
