//! Says on which machines a snapshot of a kernel can be restored.
//!
//! Libraries choose code for the processor that they start on, so a machine must have every instruction set of the one that
//! the kernel started on; it may have more. The vDSO may differ: restoring redirects it (`belljar-snapshot/src/vdso.rs`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a snapshot of a kernel needs of a machine, or what a machine has. Its text is short and the same on equal machines.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WakeClass {
    /// The processor's architecture.
    pub arch: String,
    /// Instruction sets that programs may use, by their names in `/proc/cpuinfo`, sorted.
    pub features: Vec<String>,
    /// The version of the format of snapshots.
    pub format: u64,
}

/// The class of this machine.
#[must_use]
pub fn wake_class() -> WakeClass {
    let mut features = processor::features();
    features.sort();
    WakeClass { arch: std::env::consts::ARCH.into(), features, format: processor::FORMAT }
}

/// Checks whether a snapshot of the class `snapshot` can be restored on a machine of the class `here`; the error is the reason
/// why not.
pub fn can_wake(snapshot: &WakeClass, here: &WakeClass) -> Result<(), String> {
    if snapshot.arch != here.arch {
        return Err(format!(
            "the snapshot is of an {} machine, and this is an {} machine",
            snapshot.arch, here.arch
        ));
    }
    if snapshot.format > here.format {
        return Err(format!(
            "the snapshot has format {}, and this version reads formats up to {}",
            snapshot.format, here.format
        ));
    }
    let missing: Vec<&str> = snapshot
        .features
        .iter()
        .filter(|feature| !here.features.contains(feature))
        .map(String::as_str)
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "this machine lacks {}, which the kernel's libraries may use",
            missing.join(", ")
        )),
    }
}

impl fmt::Display for WakeClass {
    /// Architecture, format, and a hash of the instruction sets: `x86_64-1-91c3f0a2b4d5e687`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:016x}", self.arch, self.format, hash(&self.features))
    }
}

/// The class of a node: its machine, and the default image of its sandboxes. Its text contains the whole class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    pub machine: WakeClass,
    pub image: String,
}

impl NodeClass {
    /// The class of a node on this machine.
    #[must_use]
    pub fn here(image: &str) -> NodeClass {
        NodeClass { machine: wake_class(), image: image.to_owned() }
    }

    /// A short name for people. Different classes have different names.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}", self.machine, self.image)
    }
}

/// As [`can_wake`], for the texts of the classes of the node that made the snapshot and of another node.
pub fn can_wake_on(snapshot: &str, node: &str) -> Result<(), String> {
    if snapshot == node {
        return Ok(());
    }
    let (Ok(snapshot), Ok(node)) = (snapshot.parse::<NodeClass>(), node.parse::<NodeClass>())
    else {
        return Err("the snapshot is of a node of another class".into());
    };
    if snapshot.image != node.image {
        return Err(format!(
            "the snapshot is of a node with the image {}, and this node has the image {}",
            snapshot.image, node.image
        ));
    }
    can_wake(&snapshot.machine, &node.machine)
}

impl fmt::Display for NodeClass {
    /// Architecture, format, instruction sets and image: `x86_64 1 avx,avx2 native`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WakeClass { arch, features, format } = &self.machine;
        write!(f, "{arch} {format} {} {}", features.join(","), self.image)
    }
}

/// A text that is not the class of a node.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not the class of a node")]
pub struct BadClass(String);

impl FromStr for NodeClass {
    type Err = BadClass;

    fn from_str(text: &str) -> Result<NodeClass, BadClass> {
        let bad = || BadClass(text.to_owned());
        let mut parts = text.splitn(4, ' ');
        let mut next = || parts.next().ok_or_else(bad);
        let (arch, format, features, image) = (next()?, next()?, next()?, next()?);
        let features = features.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
        let machine = WakeClass {
            arch: arch.to_owned(),
            features: features.collect(),
            format: format.parse().map_err(|_| bad())?,
        };
        Ok(NodeClass { machine, image: image.to_owned() })
    }
}

/// FNV-1a, which is the same in every version of every program.
fn hash(features: &[String]) -> u64 {
    let mut sorted: Vec<&str> = features.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let bytes = sorted.iter().flat_map(|feature| feature.bytes().chain([b' ']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod processor {
    pub(super) const FORMAT: u64 = belljar_snapshot::VERSION;

    pub(super) fn features() -> Vec<String> {
        belljar_snapshot::Features::of_this_machine().names().map(str::to_owned).collect()
    }
}

/// Kernels are not saved on other processors.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod processor {
    pub(super) const FORMAT: u64 = 0;

    pub(super) fn features() -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(features: &[&str]) -> WakeClass {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        WakeClass { arch: "x86_64".into(), features, format: 1 }
    }

    #[test]
    fn a_machine_may_have_more_but_not_less() {
        let (small, large) =
            (class(&["avx", "avx2"]), class(&["avx", "avx2", "avx512f", "sha_ni"]));
        assert_eq!(can_wake(&small, &small), Ok(()));
        assert_eq!(can_wake(&small, &large), Ok(()));
        let reason = "this machine lacks avx512f, sha_ni, which the kernel's libraries may use";
        assert_eq!(can_wake(&large, &small), Err(reason.into()));
    }

    #[test]
    fn another_architecture_or_a_newer_format_is_refused() {
        let here = class(&["avx"]);
        let other = WakeClass { arch: "aarch64".into(), ..here.clone() };
        let reason = "the snapshot is of an aarch64 machine, and this is an x86_64 machine";
        assert_eq!(can_wake(&other, &here), Err(reason.into()));
        let newer = WakeClass { format: 2, ..here.clone() };
        let reason = "the snapshot has format 2, and this version reads formats up to 1";
        assert_eq!(can_wake(&newer, &here), Err(reason.into()));
        assert_eq!(can_wake(&here, &newer), Ok(()));
    }

    #[test]
    fn its_text_is_short_and_the_same_everywhere() {
        assert_eq!(class(&["avx", "avx2"]).to_string(), class(&["avx2", "avx"]).to_string());
        assert_ne!(class(&["avx", "avx2"]).to_string(), class(&["avxavx2"]).to_string());
        assert_eq!(class(&[]).to_string(), "x86_64-1-cbf29ce484222325");
        let here = wake_class();
        assert_eq!(here, wake_class());
        assert!(here.features.is_sorted() && here.to_string().len() < 40, "{here}");
        let stored = serde_json::to_string(&here).expect("JSON");
        assert_eq!(serde_json::from_str::<WakeClass>(&stored).expect("a class"), here);
    }

    #[test]
    fn a_node_with_more_wakes_snapshots_of_one_with_less() {
        let node = |features: &[&str], image: &str| {
            NodeClass { machine: class(features), image: image.to_owned() }.to_string()
        };
        let (small, large) = (node(&["avx"], "an image"), node(&["avx", "sha_ni"], "an image"));
        assert_eq!(small, "x86_64 1 avx an image");
        assert_eq!(can_wake_on(&small, &large), Ok(()));
        let reason = "this machine lacks sha_ni, which the kernel's libraries may use";
        assert_eq!(can_wake_on(&large, &small), Err(reason.into()));
        let reason =
            "the snapshot is of a node with the image an image, and this node has the image b";
        assert_eq!(can_wake_on(&small, &node(&["avx"], "b")), Err(reason.into()));
        let name = small.parse::<NodeClass>().expect("a class").name();
        assert!(name.starts_with("x86_64-1-") && name.ends_with("-an image"), "{name}");
        let here = NodeClass::here("a");
        assert_eq!(here.to_string().parse::<NodeClass>().expect("a class"), here);
        let bare = node(&[], "a").parse::<NodeClass>().expect("a class");
        assert!(bare.machine.features.is_empty());
    }
}
