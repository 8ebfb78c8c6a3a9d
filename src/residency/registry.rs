//! Which device has which residency.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use burn_backend::tensor::Device;
use burn_backend::{DeviceId, DeviceOps};

use super::Residency;
use crate::config::LctConfig;
use crate::error::ConfigError;
use crate::store::PackedStore;

type Key = (TypeId, DeviceId);
type Erased = Arc<dyn Any + Send + Sync>;

static REGISTRY: LazyLock<RwLock<HashMap<Key, Erased>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// The last residency that this thread asked for: nearly always the next one, too.
    static LAST: RefCell<Option<(Key, Erased)>> = const { RefCell::new(None) };
}

impl<B: PackedStore> Residency<B> {
    /// The residency of a device, made with the default configuration if it has none yet.
    pub(crate) fn of(device: &Device<B>) -> Arc<Self> {
        let key = key::<B>(device);
        let last = LAST.with_borrow(|last| match last {
            Some((last, residency)) if *last == key => Some(residency.clone()),
            _ => None,
        });
        let residency = last.unwrap_or_else(|| {
            let found = lookup(&key).unwrap_or_else(|| {
                let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
                let fresh = || Arc::new(Self::new(LctConfig::default())) as Erased;
                registry.entry(key).or_insert_with(fresh).clone()
            });
            LAST.set(Some((key, found.clone())));
            found
        });
        residency
            .downcast()
            .expect("the key holds the backend's type")
    }

    /// Sets the configuration of a device that has not been used yet.
    pub(crate) fn configure(device: &Device<B>, config: LctConfig) -> Result<(), ConfigError> {
        config.validate()?;
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        match registry.entry(key::<B>(device)) {
            std::collections::hash_map::Entry::Occupied(_) => Err(ConfigError::InUse {
                device: format!("{device:?}"),
            }),
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(Arc::new(Self::new(config)));
                Ok(())
            }
        }
    }
}

fn lookup(key: &Key) -> Option<Erased> {
    REGISTRY
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(key)
        .cloned()
}

fn key<B: PackedStore>(device: &Device<B>) -> Key {
    (TypeId::of::<B>(), device.id())
}
