//! Times at which nothing is packed.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static DEFERRED: Cell<u32> = const { Cell::new(0) };
}

/// While one lives, evictions of this thread wait.
///
/// CubeCL's persistent allocations are exact pages that are never reused for another size: a packed form that is
/// allocated among them would waste its page for good.
#[must_use]
pub(crate) struct Deferral(PhantomData<*const ()>);

/// Defers evictions on this thread until the returned guard is dropped.
pub(crate) fn defer_evictions() -> Deferral {
    DEFERRED.set(DEFERRED.get() + 1);
    Deferral(PhantomData)
}

pub(super) fn is_deferred() -> bool {
    DEFERRED.get() > 0
}

impl Drop for Deferral {
    fn drop(&mut self) {
        DEFERRED.set(DEFERRED.get() - 1);
    }
}
