//! Memory that is not used any more goes back to the system between cells.

use belljar_runtime::Limits;

use crate::lab::{Lab, eventually};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_session_that_held_a_gigabyte_and_deleted_it_is_small_again() {
    let lab = Lab::warm().await;
    let limits = Limits { memory: 2048 * MIB, ..Limits::default() };
    let session = lab.session_with(limits).await;
    assert_eq!(session.value("1").await, "1");
    let fresh = session.sandbox.memory_used().expect("it is charged");
    assert!(fresh < 8 * MIB, "an idle session copies little of its zygote: {fresh}");
    for hoard in [
        "import numpy as np; x = np.ones(125_000_000); y = [np.ones(999) for _ in range(100)]; del x",
        "x = [np.ones(1000) for _ in range(120_000)]; y = x[::600]; del x",
        "import pandas as pd; x = pd.DataFrame(np.ones((1_000_000, 120))); y = x.iloc[:10].copy(); del x",
        "x = [[n] for n in range(9_000_000)]; del x",
        "x = [str(n) * 500 for n in range(300_000)]; y = x[::3000]; del x",
    ] {
        session.run(hoard).await;
        let peak = session.sandbox.memory_used();
        eventually(&format!("{hoard} (from {peak:?})"), || {
            session.sandbox.memory_used().is_some_and(|used| used < 60 * MIB)
        })
        .await;
    }
}
