//! Two cards that share a training.

use crate::{config, folder, trained};

const SHARED: &[&str] = &["--preset", "tiny", "--steps", "4", "--devices", "2"];

#[test]
fn packed_tensors_move_between_two_cards() {
    let folder = folder("cards");
    // All rests that may.
    let config = config(
        &folder,
        r#"{"hot_window": {"bytes": 0}, "min_elements": 1024}"#,
    );

    let (_, plain) = trained(&folder, "plain", SHARED);
    let (_, lct) = trained(
        &folder,
        "lct",
        &[SHARED, &config.each_ref().map(String::as_str)].concat(),
    );
    assert_eq!((plain.devices.len(), lct.devices.len()), (2, 2));
    for (plain, lct) in plain.devices.iter().zip(&lct.devices) {
        let memory = &lct.memory.as_ref().unwrap()["report"];
        let count = |name: &str| memory[name].as_u64().unwrap();
        assert!(count("encodes") > 0 && count("moves") > 0, "{memory}");
        assert!(count("moved_as_bytes") < count("moved_bytes"), "{memory}");
        assert_eq!(count("failed_encodes"), 0, "{memory}");
        assert!(lct.peak.unwrap().in_use < plain.peak.unwrap().in_use);
    }
}
