//! A card that is too small for plain Burn.

use crate::{folder, train, trained};

/// Of GiB: plain Burn's tensors take more than that, and packed they take half of it.
const ROOM: &str = "0.45";

#[test]
fn a_card_that_plain_burn_fills_has_room_for_packed_tensors() {
    let folder = folder("short");
    let small = ["--preset", "small", "--batch", "8", "--steps", "6"];
    // Trying kernels takes memory of its own.
    for backend in ["plain", "lct"] {
        trained(&folder, backend, &small);
    }
    let small = [&small[..], &["--max-memory", ROOM, "--memory-every", "1"]].concat();
    let refused = train(&folder, "plain", &small);
    let Err(told) = refused else {
        panic!("plain Burn has room, so this shows nothing");
    };
    assert!(told.contains("can't allocate buffer"), "{told}");

    let (_, report) = trained(&folder, "lct", &small);
    let memory = &report.memory.as_ref().unwrap()["report"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    let room = (ROOM.parse::<f64>().unwrap() * f64::from(1 << 30)) as u64;
    // The allocator knows of no balloon, but of what the program had.
    assert!(report.peak_bytes_in_use.unwrap() < room);
    assert!(bytes("peak_resident_bytes") < bytes("peak_logical_bytes"));
    assert!(bytes("encodes") > 100);
}
