//! Random faults from a seed: which ones, of what, when and for how long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_testkit::cluster::dice::Dice;
use belljar_testkit::cluster::network::Direction;
use belljar_testkit::cluster::proxy::Mode;
use belljar_testkit::cluster::{Cluster, LEASE};
use tokio::task::JoinSet;

use crate::history::Recorder;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillNode,
    PauseNode,
    DrainNode,
    KillSpawner,
    KillWatchdog,
    CutNodeFromPostgres,
    CutNodeFromS3,
    CutNodeFromGateways,
    IsolateNode,
    KillGateway,
    PauseGateway,
    CutGatewayFromPostgres,
    StopPostgres,
    KillPostgres,
    FailOverPostgres,
    SlowS3,
    FailingS3,
    RefusingS3,
    HangingS3,
}

/// Each kind with its weight.
const KINDS: [(Kind, u64); 19] = [
    (Kind::KillNode, 10),
    (Kind::PauseNode, 10),
    (Kind::DrainNode, 3),
    (Kind::KillSpawner, 2),
    (Kind::KillWatchdog, 4),
    (Kind::CutNodeFromPostgres, 10),
    (Kind::CutNodeFromS3, 6),
    (Kind::CutNodeFromGateways, 8),
    (Kind::IsolateNode, 8),
    (Kind::KillGateway, 8),
    (Kind::PauseGateway, 5),
    (Kind::CutGatewayFromPostgres, 6),
    (Kind::StopPostgres, 3),
    (Kind::KillPostgres, 2),
    (Kind::FailOverPostgres, 3),
    (Kind::SlowS3, 4),
    (Kind::FailingS3, 4),
    (Kind::RefusingS3, 4),
    (Kind::HangingS3, 3),
];

/// The things that can have a fault; each has one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Target {
    Node(usize),
    Gateway(usize),
    Postgres,
    S3,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    /// After the fault before it began.
    pub(crate) delay: Duration,
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    pub(crate) duration: Duration,
    pub(crate) direction: Direction,
}

/// The endless list of faults that a seed stands for.
pub(crate) struct Schedule {
    dice: Dice,
    nodes: usize,
    gateways: usize,
}

impl Schedule {
    pub(crate) fn new(seed: u64, nodes: usize, gateways: usize) -> Schedule {
        Schedule { dice: Dice::new(seed), nodes, gateways }
    }

    fn kind(&mut self) -> Kind {
        let total: u64 = KINDS.iter().map(|(_, weight)| weight).sum();
        let mut left = self.dice.below(total);
        for (kind, weight) in KINDS {
            if left < weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("the weights add up to the total")
    }

    fn target(&mut self, kind: Kind) -> Target {
        match kind {
            Kind::KillNode
            | Kind::PauseNode
            | Kind::DrainNode
            | Kind::KillSpawner
            | Kind::KillWatchdog
            | Kind::CutNodeFromPostgres
            | Kind::CutNodeFromS3
            | Kind::CutNodeFromGateways
            | Kind::IsolateNode => Target::Node(self.dice.index(self.nodes)),
            Kind::KillGateway | Kind::PauseGateway | Kind::CutGatewayFromPostgres => {
                Target::Gateway(self.dice.index(self.gateways))
            }
            Kind::StopPostgres | Kind::KillPostgres | Kind::FailOverPostgres => Target::Postgres,
            Kind::SlowS3 | Kind::FailingS3 | Kind::RefusingS3 | Kind::HangingS3 => Target::S3,
        }
    }

    /// Most faults are short. Some last longer than a lease and the time until it is taken over.
    fn duration(&mut self, kind: Kind) -> Duration {
        let lease = u64::try_from(LEASE.as_millis()).expect("a short lease");
        let longest = match kind {
            Kind::StopPostgres
            | Kind::KillPostgres
            | Kind::FailOverPostgres
            | Kind::PauseGateway => lease * 2,
            _ => lease * 4,
        };
        match self.dice.below(3) {
            0 => self.dice.millis(20, lease / 3),
            1 => self.dice.millis(lease / 3, lease),
            _ => self.dice.millis(lease, longest),
        }
    }
}

impl Iterator for Schedule {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let kind = self.kind();
        let delay = match self.dice.below(10) {
            // Now and then everything recovers.
            0 => self.dice.millis(2000, 6000),
            _ => self.dice.millis(50, 1500),
        };
        let direction = match self.dice.below(4) {
            0 => Direction::Incoming,
            1 => Direction::Outgoing,
            _ => Direction::Both,
        };
        let target = self.target(kind);
        Some(Fault { delay, kind, target, duration: self.duration(kind), direction })
    }
}

/// Causes faults until `end`, at most `overlap` at a time, then waits until all are over. Returns how many of each kind.
pub(crate) async fn inject(
    cluster: &Arc<Cluster>,
    recorder: impl Fn() -> Arc<crate::workload::World>,
    schedule: Schedule,
    end: tokio::time::Instant,
    overlap: usize,
) -> BTreeMap<Kind, u64> {
    let busy: Arc<Mutex<Vec<Target>>> = Arc::default();
    let mut running = JoinSet::new();
    let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
    for fault in schedule {
        tokio::time::sleep(fault.delay).await;
        if tokio::time::Instant::now() >= end {
            break;
        }
        {
            let mut busy = busy.lock().expect("not poisoned");
            if busy.len() >= overlap || busy.contains(&fault.target) {
                continue;
            }
            busy.push(fault.target);
        }
        *counts.entry(fault.kind).or_default() += 1;
        let (cluster, world, busy) = (Arc::clone(cluster), recorder(), Arc::clone(&busy));
        running.spawn(async move {
            cause(&cluster, &world.recorder, &fault).await;
            busy.lock().expect("not poisoned").retain(|target| *target != fault.target);
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a fault that could be caused");
    }
    counts
}

/// Causes a fault, waits for its duration and repairs it.
async fn cause(cluster: &Cluster, recorder: &Recorder, fault: &Fault) {
    let name = match fault.target {
        Target::Node(n) => format!("node-{n}"),
        Target::Gateway(n) => format!("gateway-{n}"),
        Target::Postgres => "postgres".to_owned(),
        Target::S3 => "s3".to_owned(),
    };
    eprintln!("fault: {:?} of {name} for {} ms", fault.kind, fault.duration.as_millis());
    let number = recorder.fault_begins(&format!("{:?}", fault.kind), &name);
    match fault.target {
        Target::Node(node) => of_node(cluster, node, fault).await,
        Target::Gateway(gateway) => of_gateway(cluster, gateway, fault).await,
        Target::Postgres => of_postgres(cluster, fault).await,
        Target::S3 => of_s3(cluster, fault).await,
    }
    recorder.fault_ends(number);
}

async fn of_node(cluster: &Cluster, number: usize, fault: &Fault) {
    let node = &cluster.nodes[number];
    let wait = tokio::time::sleep(fault.duration);
    match fault.kind {
        Kind::KillNode => {
            node.kill().await;
            wait.await;
        }
        Kind::PauseNode => {
            node.pause().await;
            wait.await;
            node.resume().await;
        }
        Kind::DrainNode => {
            node.ask_to_stop().await;
            wait.await;
            // A drain that is not finished ends like a pod whose grace period is over.
            node.kill().await;
        }
        Kind::KillSpawner => {
            node.kill_helper(" spawner").await;
        }
        Kind::KillWatchdog => {
            node.kill_watchdog();
        }
        _ => {
            let gateways = cluster.gateways.iter().map(|gateway| gateway.machine.address);
            let peers = match fault.kind {
                Kind::CutNodeFromPostgres => vec![cluster.postgres.machine.address],
                Kind::CutNodeFromS3 => vec![cluster.own_address()],
                Kind::CutNodeFromGateways => gateways.collect(),
                _ => gateways
                    .chain([cluster.postgres.machine.address, cluster.own_address()])
                    .collect(),
            };
            node.machine.cut_off(&peers, fault.direction);
            wait.await;
            node.machine.reconnect();
        }
    }
    // Also if it ended because of the fault, as a pod that is started again.
    node.start().await;
}

async fn of_gateway(cluster: &Cluster, number: usize, fault: &Fault) {
    let gateway = &cluster.gateways[number];
    let wait = tokio::time::sleep(fault.duration);
    match fault.kind {
        Kind::KillGateway => {
            gateway.kill().await;
            wait.await;
        }
        Kind::PauseGateway => {
            gateway.pause().await;
            wait.await;
            gateway.resume().await;
        }
        _ => {
            gateway.machine.cut_off(&[cluster.postgres.machine.address], fault.direction);
            wait.await;
            gateway.machine.reconnect();
        }
    }
    gateway.start().await;
}

async fn of_postgres(cluster: &Cluster, fault: &Fault) {
    match fault.kind {
        Kind::FailOverPostgres => return cluster.postgres.fail_over(fault.duration).await,
        Kind::KillPostgres => cluster.postgres.kill().await,
        _ => cluster.postgres.stop_at_once().await,
    }
    tokio::time::sleep(fault.duration).await;
    cluster.postgres.resume().await;
}

async fn of_s3(cluster: &Cluster, fault: &Fault) {
    cluster.s3.set(match fault.kind {
        Kind::SlowS3 => Mode::Slow(Duration::from_millis(200)),
        Kind::FailingS3 => Mode::Fail,
        Kind::RefusingS3 => Mode::Refuse,
        _ => Mode::Hang,
    });
    tokio::time::sleep(fault.duration).await;
    cluster.s3.set(Mode::Pass);
}

#[test]
fn the_same_seed_is_the_same_schedule() {
    let faults = |seed| Schedule::new(seed, 3, 2).take(50).collect::<Vec<Fault>>();
    assert_eq!(faults(7), faults(7));
    assert_ne!(faults(7), faults(8));
}
