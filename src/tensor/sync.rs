//! What the [state machine](super::state) needs of threads. `models/` gives it loom's instead.

pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
