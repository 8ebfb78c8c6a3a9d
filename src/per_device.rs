//! One value of a type for each device, made when first asked for and kept as long as the program.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockWriteGuard};

use burn_backend::DeviceId;

type Key = (TypeId, DeviceId);
type Value = &'static (dyn Any + Send + Sync);

static VALUES: LazyLock<RwLock<HashMap<Key, Value>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// The last value that this thread asked for: nearly always the next one, too.
    static LAST: RefCell<Option<(Key, Value)>> = const { RefCell::new(None) };
}

/// The device's value of type `T`, made by `make` if it has none yet.
pub(crate) fn get<T: Send + Sync + 'static>(
    device: DeviceId,
    make: impl FnOnce() -> T,
) -> &'static T {
    let key = (TypeId::of::<T>(), device);
    let last = LAST.with_borrow(|last| match last {
        Some((last, value)) if *last == key => Some(*value),
        _ => None,
    });
    let value = last.unwrap_or_else(|| {
        let value = look_up(&key).unwrap_or_else(|| {
            // Made before the lock is taken: it may start a device up, or ask for other values.
            let fresh = make();
            *write().entry(key).or_insert_with(|| leak(fresh))
        });
        LAST.set(Some((key, value)));
        value
    });
    value.downcast_ref().expect("the key holds the type")
}

/// The device's value of type `T`, if it has one.
pub(crate) fn find<T: Send + Sync + 'static>(device: DeviceId) -> Option<&'static T> {
    look_up(&(TypeId::of::<T>(), device))?.downcast_ref()
}

/// Gives the device its value of type `T`. Returns whether it had none yet.
pub(crate) fn set<T: Send + Sync + 'static>(device: DeviceId, value: T) -> bool {
    match write().entry((TypeId::of::<T>(), device)) {
        Entry::Occupied(_) => false,
        Entry::Vacant(slot) => {
            slot.insert(leak(value));
            true
        }
    }
}

fn look_up(key: &Key) -> Option<Value> {
    let values = VALUES.read().unwrap_or_else(PoisonError::into_inner);
    values.get(key).copied()
}

fn write() -> RwLockWriteGuard<'static, HashMap<Key, Value>> {
    VALUES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Devices are few and live as long as the program, so what belongs to them may as well.
fn leak<T: Send + Sync + 'static>(value: T) -> Value {
    Box::leak(Box::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_differ_by_type_and_device_and_are_set_once() {
        let (a, b) = (DeviceId::new(900, 0), DeviceId::new(900, 1));
        assert_eq!(find::<u64>(a), None);
        assert_eq!(*get(a, || 1u64), 1);
        assert_eq!(find(a), Some(&1u64));
        assert_eq!(*get(a, || 2u64), 1);
        assert_eq!(*get(b, || 3u64), 3);
        assert_eq!(*get(a, || 4i64), 4);
        assert!(!set(a, 5u64));
        assert!(set(a, 6u32));
        assert_eq!(*get(a, || 7u32), 6);
    }
}
