//! The lease watchdog: a small process that freezes the sandboxes of a node when its lease ends, also if the server is
//! stopped, hangs or was killed.
//!
//! The server sends deadlines over a pipe. When one passes, the watchdog freezes; when a later one arrives, it thaws. It
//! outlives the server until the sandboxes are frozen or another watchdog is responsible. Which one is responsible is in a
//! file: a generation, which each server writes before it starts its watchdog, and the latest deadline.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use belljar_sys::file_lock::FileLock;
use belljar_sys::{boot_clock, process};

/// The longest pause between two looks at the clock, which goes on while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// Pause before a watchdog that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// How long a server waits for the end of its watchdog.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// How the server starts a watchdog.
#[derive(Debug, Clone)]
pub struct WatchdogConfig {
    /// The belljar binary.
    pub executable: PathBuf,
    /// The file with the generation and the deadline.
    pub file: PathBuf,
    /// The cgroup above all sandboxes.
    pub cgroup: PathBuf,
}

/// The server's side of its watchdog.
#[derive(Debug, Clone)]
pub struct Watchdog {
    orders: mpsc::Sender<Order>,
    /// Set when the process has ended because it was asked to.
    ended: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Until(Duration),
    /// No sandbox is left.
    End,
}

impl Watchdog {
    /// Starts the watchdog. From now on an earlier one freezes nothing.
    pub fn start(config: WatchdogConfig) -> io::Result<Watchdog> {
        let mut running = Running::start(&config)?;
        let (orders, received) = mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let note_end = Arc::clone(&ended);
        // A thread of its own, because writing to a watchdog that is stopped would block.
        std::thread::Builder::new().name("lease-watchdog".into()).spawn(move || {
            while let Ok(order) = received.recv() {
                // Only the latest order counts.
                let order = received.try_iter().last().unwrap_or(order);
                while running.send(order).is_err() {
                    tracing::error!("the lease watchdog ended; starting another");
                    std::thread::sleep(RESTART_PAUSE);
                    match Running::start(&config) {
                        Ok(again) => running = again,
                        Err(error) => tracing::error!("failed to start it: {error}"),
                    }
                }
                if order == Order::End {
                    let _ = running.child.wait();
                    note_end.store(true, Ordering::Relaxed);
                    return;
                }
            }
        })?;
        Ok(Watchdog { orders, ended })
    }

    /// Sandboxes may run until then, by the boot clock.
    pub fn set_deadline(&self, deadline: Duration) {
        let _ = self.orders.send(Order::Until(deadline));
    }

    /// Ends the watchdog, because no sandbox is left, and waits for that.
    pub fn end(&self) {
        let _ = self.orders.send(Order::End);
        let until = Instant::now() + END_PATIENCE;
        while !self.ended.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Running {
    child: Child,
    orders: ChildStdin,
}

impl Running {
    fn start(config: &WatchdogConfig) -> io::Result<Running> {
        let generation = process::random_name();
        let lock = FileLock::open(&lock_path(&config.file), || {})?;
        let deadline = Record::read(&config.file).and_then(|record| record.deadline);
        Record { generation: generation.clone(), deadline }.write(&config.file)?;
        drop(lock);
        let mut child = Command::new(&config.executable)
            .arg("lease-watchdog")
            .arg("--file")
            .arg(&config.file)
            .arg("--generation")
            .arg(generation)
            .arg("--cgroup")
            .arg(&config.cgroup)
            // Signals to the group of the server, such as Ctrl-C, are not for the watchdog.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let orders = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Running { child, orders })
    }

    fn send(&mut self, order: Order) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.orders.write_all(order.line().as_bytes())
    }
}

impl Order {
    fn line(self) -> String {
        match self {
            Order::Until(deadline) => format!("until {}\n", deadline.as_millis()),
            Order::End => "end\n".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Order> {
        match line.trim().split_once(' ') {
            Some(("until", ms)) => Some(Order::Until(Duration::from_millis(ms.parse().ok()?))),
            None if line.trim() == "end" => Some(Order::End),
            _ => None,
        }
    }
}

/// The content of the file.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    generation: String,
    deadline: Option<Duration>,
}

impl Record {
    fn read(path: &Path) -> Option<Record> {
        let text = fs::read_to_string(path).ok()?;
        let mut words = text.split_whitespace();
        let generation = words.next()?.to_owned();
        let deadline = words.next().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        Some(Record { generation, deadline })
    }

    /// Readers see the old or the new content.
    fn write(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        let ms = self.deadline.map(|deadline| deadline.as_millis().to_string());
        fs::write(&fresh, format!("{} {}\n", self.generation, ms.unwrap_or_default()))?;
        fs::rename(&fresh, path)
    }
}

fn lock_path(file: &Path) -> PathBuf {
    file.with_extension("lock")
}

/// Freezes and thaws the sandboxes of a node.
pub trait Freezer {
    fn set(&self, frozen: bool) -> io::Result<()>;
}

/// The watchdog process: reads orders from `input` until it is not needed any more.
pub fn watch(
    file: &Path,
    generation: &str,
    input: impl io::Read + Send + 'static,
    freezer: &impl Freezer,
) -> io::Result<()> {
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if let Some(order) = Order::parse(&line) {
                let _ = sender.send(order);
            }
        }
    });
    let deadline = Record::read(file).and_then(|record| record.deadline);
    let mut guard = Guard { file, generation, deadline, frozen: false };
    let mut has_server = true;
    loop {
        let pause = guard.pause(boot_clock::now());
        if has_server {
            match orders.recv_timeout(pause) {
                Ok(Order::End) => return Ok(()),
                Ok(Order::Until(deadline)) => guard.extend(deadline, freezer)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => has_server = false,
            }
        } else {
            std::thread::sleep(pause);
        }
        let responsible = guard.check(boot_clock::now(), freezer)?;
        if !responsible || (!has_server && (guard.frozen || guard.deadline.is_none())) {
            return Ok(());
        }
    }
}

struct Guard<'a> {
    file: &'a Path,
    generation: &'a str,
    deadline: Option<Duration>,
    frozen: bool,
}

impl Guard<'_> {
    fn pause(&self, now: Duration) -> Duration {
        let left =
            self.deadline.filter(|_| !self.frozen).map(|deadline| deadline.saturating_sub(now));
        left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
    }

    fn is_responsible(&self) -> bool {
        Record::read(self.file).is_none_or(|record| record.generation == self.generation)
    }

    fn extend(&mut self, deadline: Duration, freezer: &impl Freezer) -> io::Result<()> {
        let _lock = FileLock::open(&lock_path(self.file), || {})?;
        if !self.is_responsible() {
            return Ok(());
        }
        self.deadline = Some(deadline);
        let record = Record { generation: self.generation.to_owned(), deadline: self.deadline };
        record.write(self.file)?;
        if self.frozen && boot_clock::now() < deadline {
            freezer.set(false)?;
            self.frozen = false;
        }
        Ok(())
    }

    /// Freezes if the deadline has passed. Returns whether this watchdog is still responsible.
    fn check(&mut self, now: Duration, freezer: &impl Freezer) -> io::Result<bool> {
        if self.frozen || self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(true);
        }
        // With the lock, no server can start another watchdog and thaw between the check and the freezing.
        let _lock = FileLock::open(&lock_path(self.file), || {})?;
        if !self.is_responsible() {
            return Ok(false);
        }
        freezer.set(true)?;
        self.frozen = true;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::thread::JoinHandle;

    use super::*;

    #[derive(Clone, Default)]
    struct Switch(Arc<Mutex<Vec<bool>>>);

    impl Freezer for Switch {
        fn set(&self, frozen: bool) -> io::Result<()> {
            self.0.lock().unwrap().push(frozen);
            Ok(())
        }
    }

    impl Switch {
        fn said(&self, expected: &[bool]) -> bool {
            let until = Instant::now() + Duration::from_secs(20);
            while *self.0.lock().unwrap() != expected && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            *self.0.lock().unwrap() == expected
        }
    }

    struct Tested {
        server: UnixStream,
        switch: Switch,
        watching: JoinHandle<io::Result<()>>,
    }

    fn start(file: &Path, generation: &str) -> Tested {
        let deadline = Record::read(file).and_then(|record| record.deadline);
        Record { generation: generation.to_owned(), deadline }.write(file).unwrap();
        let (server, input) = UnixStream::pair().unwrap();
        let (switch, file, generation) =
            (Switch::default(), file.to_owned(), generation.to_owned());
        let own = switch.clone();
        let watching = std::thread::spawn(move || watch(&file, &generation, input, &own));
        Tested { server, switch, watching }
    }

    fn until(after_ms: u64) -> String {
        Order::Until(boot_clock::now() + Duration::from_millis(after_ms)).line()
    }

    #[test]
    fn it_freezes_at_the_deadline_and_thaws_at_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let mut tested = start(&directory.path().join("lease"), "a");
        tested.server.write_all(until(50).as_bytes()).unwrap();
        assert!(tested.switch.said(&[true]));
        tested.server.write_all(until(60_000).as_bytes()).unwrap();
        assert!(tested.switch.said(&[true, false]));
        tested.server.write_all(Order::End.line().as_bytes()).unwrap();
        tested.watching.join().unwrap().unwrap();
    }

    #[test]
    fn it_outlives_the_server_until_it_has_frozen() {
        let directory = tempfile::tempdir().unwrap();
        let mut tested = start(&directory.path().join("lease"), "a");
        tested.server.write_all(until(300).as_bytes()).unwrap();
        drop(tested.server);
        tested.watching.join().unwrap().unwrap();
        assert!(tested.switch.said(&[true]));
    }

    #[test]
    fn the_watchdog_of_the_next_server_is_responsible_and_knows_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lease");
        let mut first = start(&file, "a");
        first.server.write_all(until(1500).as_bytes()).unwrap();
        let stored = || Record::read(&file).is_some_and(|record| record.deadline.is_some());
        while !stored() {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(first.server);
        let second = start(&file, "b");
        first.watching.join().unwrap().unwrap();
        assert!(first.switch.said(&[]), "it is not responsible any more");
        assert!(second.switch.said(&[true]), "the lease is still the old one");
        drop(second.server);
        second.watching.join().unwrap().unwrap();
    }

    #[test]
    fn orders_are_read_as_they_are_written() {
        for order in [Order::Until(Duration::from_millis(1234)), Order::End] {
            assert_eq!(Order::parse(&order.line()), Some(order));
        }
        assert_eq!(Order::parse("until soon\n"), None);
    }
}
