//! What must hold for any configuration file. The fuzz target (`fuzz/`) and the replay of its corpus share it.

use burn_lct::{HotWindow, LctConfig};

/// Any text is a configuration or an error; a configuration can be written and read again, and is usable or says why not.
pub fn config(data: &[u8]) {
    let Ok(config) = serde_json::from_slice::<LctConfig>(data) else {
        return;
    };
    let written = serde_json::to_vec(&config).unwrap();
    let back: LctConfig = serde_json::from_slice(&written).unwrap();
    assert_eq!(back, config);
    match config.validate() {
        Ok(()) => {
            assert!(config.min_elements > 0 && config.spill_reserve >= 8192);
            if let HotWindow::Share(share) = config.hot_window {
                assert!(share > 0.0 && share < 1.0);
            }
        }
        Err(error) => {
            assert!(error.to_string().contains("must") || error.to_string().contains("give"))
        }
    }
}
