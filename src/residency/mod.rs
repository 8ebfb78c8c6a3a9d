//! What is dense and what is packed: one manager per device.
//!
//! Every fresh BF16 tensor enters the *hot window*. When the [budget](budget) is exceeded, tensors go to rest: those that
//! can be computed again, then those that were not used for longest. So what dies young dies dense and costs nothing.
//! Decoded copies are entries of the same window whose eviction is free. A lazy backend's tensors go to rest at natural
//! breaks, for which what is made between two of them is [predicted](growth), and between them if there is too much all the
//! same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use burn_backend::tensor::Device;
use burn_backend::{DType, DeviceOps};

use crate::config::LctConfig;
use crate::error::ConfigError;
use crate::lock::lock;
use crate::per_device;
use crate::report::Stats;
use crate::store::{Origin, PackRequest, PackedStore, Pages};
use crate::tensor::{Held, Storage};

mod budget;
mod defer;
mod growth;
mod leaving;
mod weighed;
mod window;

use budget::Budget;
pub(crate) use defer::defer_evictions;
use growth::Growth;
use leaving::Leaving;
use weighed::Weighed;
use window::Window;

/// A lazy backend's excess is left to the next natural break as long as it is at most one of so many parts of the most bytes
/// that ever lived.
const PATIENCE_PARTS: u64 = 64;
/// What is expected to be made after a natural break of which nothing is known, in tensors as large as the largest.
const UNKNOWN_RISE: u64 = 2;
/// After so many natural breaks in succession of which nothing was known, a step has been learned.
const LEARNED: u64 = 32;
/// The device is asked how much room it has once one of so many parts of the most bytes that ever lived has been made.
const ASK_PARTS: u64 = 32;
/// It is judged how many pages the allocator holds once one of so many parts of the most bytes that ever lived has been made.
const HELD_PARTS: u64 = 16;
/// Free pages are many from one of so many parts of the most bytes that ever lived.
const FREE_PARTS: u64 = 8;
/// Where the limit would be exceeded with what is reserved for unread outcomes, no more than one of so many parts of the most
/// bytes that ever lived stays reserved.
const SETTLE_PARTS: u64 = 64;
/// The room that the device shall have, beside the window's floor, in tensors as large as the largest.
const HEADROOM: u64 = 3;

/// The manager of one device's float tensors.
pub(crate) struct Residency<B: PackedStore> {
    config: LctConfig,
    stats: Arc<Stats>,
    budget: Budget,
    window: Mutex<Window<B>>,
    growth: Mutex<Growth>,
    /// The most bytes in all forms since the last natural break.
    highest: AtomicU64,
    /// Natural breaks since the last one that had been seen before.
    unknown: AtomicU64,
    /// Pages that nobody uses are given back once so many bytes have been made.
    tidy_at: AtomicU64,
    /// The bytes that had been made when the device was last asked how much room it has.
    asked: AtomicU64,
    /// The bytes that the device lacked since the last natural break.
    lacks: AtomicU64,
    /// The least room that the device had.
    least_room: AtomicU64,
    /// The bytes that the driver may keep.
    kept: Mutex<u64>,
    /// The most bytes that the allocator's pages were seen to hold.
    held: AtomicU64,
    /// It is judged how many pages the allocator holds once so many bytes have been made.
    weigh_at: AtomicU64,
    /// What the allocator said last.
    weighed: Mutex<Weighed>,
    /// Whether the device lacked room when it was last asked.
    short: AtomicBool,
    /// Held while tensors are packed, so that two threads never pack for the same excess.
    evicting: Mutex<()>,
}

impl<B: PackedStore> Residency<B> {
    fn new(config: LctConfig) -> Self {
        Self {
            budget: Budget::new(config.hot_window),
            config,
            stats: Arc::default(),
            window: Mutex::new(Window::default()),
            growth: Mutex::default(),
            highest: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            tidy_at: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            lacks: AtomicU64::new(0),
            least_room: AtomicU64::new(u64::MAX),
            kept: Mutex::new(0),
            held: AtomicU64::new(0),
            weigh_at: AtomicU64::new(0),
            weighed: Mutex::default(),
            short: AtomicBool::new(false),
            evicting: Mutex::new(()),
        }
    }

    /// The residency of a device, made with the default configuration if it has none yet.
    pub(crate) fn of(device: &Device<B>) -> &'static Self {
        per_device::get(device.id(), || Self::new(LctConfig::default()))
    }

    /// The residency of a device that is in use or was configured.
    pub(crate) fn find(device: &Device<B>) -> Option<&'static Self> {
        per_device::find(device.id())
    }

    /// Sets the configuration of a device that has not been used yet.
    pub(crate) fn configure(device: &Device<B>, config: LctConfig) -> Result<(), ConfigError> {
        config.validate()?;
        if per_device::set(device.id(), Self::new(config)) {
            Ok(())
        } else {
            Err(ConfigError::InUse {
                device: format!("{device:?}"),
            })
        }
    }

    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    pub(crate) fn config(&self) -> &LctConfig {
        &self.config
    }

    /// Puts a storage that has just become dense, or was just used, at the young end of the window.
    pub(crate) fn admit(&self, storage: &Arc<Storage<B>>) {
        self.window().push(storage);
        if !B::LAZY {
            return self.evict(0, self.shortage(&storage.device), true);
        }
        self.highest.fetch_max(self.stats.managed_now(), Relaxed);
        self.weigh(&storage.device);
        // A lazy backend waits for the next natural break, by which more is known of what is needed again. But an optimizer,
        // say, has none.
        let shortage = self.shortage(&storage.device);
        // What has to stay now may leave there.
        self.lacks.fetch_max(shortage, Relaxed);
        let most = self.stats.logical.most();
        let excess = self.budget.excess(&self.stats, 0, 0);
        if shortage > 0
            || excess.is_some_and(|excess| excess.bytes.max(excess.dense) > most / PATIENCE_PARTS)
        {
            self.evict(0, shortage, false);
        }
    }

    /// Puts a storage at the young end of the window without packing others for it.
    pub(crate) fn touch(&self, storage: &Arc<Storage<B>>) {
        if B::LAZY {
            self.window().push(storage);
        }
    }

    /// Brings the window down to its budget, where a lazy backend's plans break anyway.
    pub(crate) fn natural_break(&self, device: &Device<B>) {
        let logical = self.stats.logical.now();
        let highest = self.highest.swap(0, Relaxed);
        let growth = || self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, at_summit) = {
            let mut growth = growth();
            let known = growth.at_break(logical, highest);
            self.budget.follow(growth.summit());
            (known, growth.at_summit())
        };
        if at_summit {
            self.budget.at_summit(&self.stats);
        }
        // Of a first step nothing is known. Where most is made, its largest tensors are a few of the same size.
        let rise = known.unwrap_or_else(|| UNKNOWN_RISE * self.stats.largest());
        let shortage = self.shortage(device).max(self.lacks.swap(0, Relaxed));
        let part = self.stats.logical.most() / SETTLE_PARTS;
        if shortage > 0
            || self.stats.reserved_now() > part && self.budget.wants_reserves(&self.stats, rise)
        {
            // Worth waiting for: much memory is held only because the host does not know that it is not needed. And where
            // something is waited for, the driver takes whole pieces of its pool apart, if it was told to keep none.
            B::take_statuses(device);
            B::ask_statuses(device);
            B::take_statuses(device);
        }
        if known.is_none() {
            self.unknown.fetch_add(1, Relaxed);
        }
        self.evict(rise, shortage, true);
        if at_summit {
            self.budget.leave_summit(logical, &self.stats, rise);
        }
        growth().leave(logical, self.stats.managed_now());
        if known.is_some()
            && (self.unknown.swap(0, Relaxed) > LEARNED
                || self.stats.entered() > self.tidy_at.load(Relaxed))
        {
            // The pages of a first step, in which tuning and guesses took more, are not those of the steps after it; nor are
            // those of packed forms that have changed their sizes since. Ever more seldom, as it costs new pages.
            B::tidy(device);
            self.tidy_at.store(2 * self.stats.entered(), Relaxed);
        }
    }

    /// The bytes that the device lacks for what may be made next.
    ///
    /// Asked for only once a good part of what ever lived has been made anew, as the answer takes the driver's time. When
    /// the device runs short, pages are given back, too.
    fn shortage(&self, device: &Device<B>) -> u64 {
        let entered = self.stats.entered();
        let since = entered.saturating_sub(self.asked.load(Relaxed));
        if since < self.stats.logical.most() / ASK_PARTS {
            return 0;
        }
        self.asked.store(entered, Relaxed);
        let wanted = HEADROOM * self.stats.largest() + self.budget.floor(&self.stats);
        let Some(room) = B::room(device) else {
            return 0;
        };
        self.budget.fit(room.capacity(), &self.stats);
        let shortage = wanted.saturating_sub(room.safe());
        self.short.store(shortage > 0, Relaxed);
        if shortage > 0 {
            B::tidy(device);
        }
        self.keep(device, room.bytes());
        shortage
    }

    /// Lets the driver keep memory that was given back, as having it again takes time at every step. But what it keeps is in
    /// pieces, of which none may be large enough: so once all that ever lived would not have fit another time, nothing is kept.
    fn keep(&self, device: &Device<B>, room: u64) {
        let most = self.stats.logical.most();
        let least = self.least_room.fetch_min(room, Relaxed).min(room);
        let wanted = if least > most {
            most.max(self.held.load(Relaxed))
        } else {
            0
        };
        let mut kept = lock(&self.kept);
        if *kept != wanted {
            *kept = wanted;
            B::keep(device, wanted);
        }
    }

    /// Gives pages back that nobody uses, where they are many and all together are more than plain Burn's tensors would take, or
    /// than a tight device has room for.
    ///
    /// Pages have exact sizes, so those of a tensor that has been packed serve only tensors of its size.
    fn weigh(&self, device: &Device<B>) {
        let (entered, most) = (self.stats.entered(), self.stats.logical.most());
        if entered < self.weigh_at.load(Relaxed).max(most / HELD_PARTS) {
            return;
        }
        let tight = self.budget.is_tight();
        let many = |pages: &Pages| (tight || pages.held > most) && pages.free() > most / FREE_PARTS;
        let (drawn, managed) = (B::drawn(device), self.stats.managed_now());
        let estimate = lock(&self.weighed).estimate(drawn, managed);
        // An estimate takes what is not managed, if it was made since, for free pages: so the allocator has the last word.
        let pages = estimate
            .filter(|pages| !many(pages))
            .or_else(|| self.ask_pages(device));
        let held = pages.map_or(0, |pages| pages.held);
        self.held.fetch_max(held, Relaxed);
        // Where little of what the pages hold is managed, it is not asked more often for that.
        let next = entered + held.max(most) / HELD_PARTS;
        self.weigh_at.store(next, Relaxed);
        if pages.is_some_and(|pages| many(&pages)) {
            B::tidy(device);
        }
    }

    /// The pages that the allocator says it holds, and waits to say. Nothing is locked meanwhile.
    fn ask_pages(&self, device: &Device<B>) -> Option<Pages> {
        let pages = B::pages(device)?;
        let (drawn, managed) = (B::drawn(device), self.stats.managed_now());
        lock(&self.weighed).answered(pages, drawn, managed);
        Some(pages)
    }

    fn window(&self) -> MutexGuard<'_, Window<B>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets tensors go to rest until the budget is kept: first those that can be computed again, then the least recently
    /// used.
    ///
    /// `rise` bytes are going to be made before the next chance, and the device lacks `shortage` bytes.
    fn evict(&self, rise: u64, shortage: u64, at_break: bool) {
        let excess = || self.budget.excess(&self.stats, rise, shortage);
        if defer::is_deferred() || excess().is_none() {
            return;
        }
        // Another thread is at it already: the budget is exceeded for just that long.
        let _evicting = match self.evicting.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(excess) = excess() else {
            return;
        };
        let mut leaving = Leaving::new(excess);
        let young = self.budget.floor(&self.stats);
        let spared = self.budget.spared(&self.stats);
        while leaving.goes_on() {
            let Some(storage) = self.window().pop_cheap(young) else {
                break;
            };
            leaving.derive(&storage);
        }
        let (mut refused, mut lifted) = (Vec::new(), Vec::new());
        while leaving.goes_on() {
            let Some(storage) = self.window().pop(spared) else {
                break;
            };
            if storage.held() == Held::Nothing {
                continue;
            }
            if B::LAZY && leaving.has_lifted(&storage) {
                lifted.push(storage);
            } else if storage.evictable(at_break) {
                let copy = storage.held() == Held::Copy;
                if copy || !leaving.derive(&storage) && self.packs(&storage) {
                    leaving.pack(storage);
                }
            } else {
                refused.push(storage);
            }
        }
        // Before a step is known more is asked for than it needs.
        if shortage == 0 && self.unknown.load(Relaxed) == 0 {
            let short = leaving.short();
            if short > 0 {
                self.budget.miss(short);
            }
        }
        for storage in &refused {
            self.window().push(storage);
        }
        // In their old places, to be packed the next time.
        for storage in lifted.iter().rev() {
            self.window().put_back(storage);
        }
        self.let_go(leaving);
    }

    /// Packs the tensors of storages that hold one, drops the copies of the others, and submits what a lazy backend gathered.
    fn let_go(&self, leaving: Leaving<B>) {
        let Leaving {
            storages,
            mut batch,
            ..
        } = leaving;
        let mut request = self.request();
        let _span = tracing::trace_span!("lct_encode", tensors = storages.len()).entered();
        // Locked until what was gathered is queued, as nobody can ask for it before.
        let mut handed_over = Vec::new();
        for storage in &storages {
            let Some((mut hand_over, tensor)) = storage.evict(&mut batch) else {
                continue;
            };
            request.origin = storage.origin;
            if B::LAZY {
                hand_over.finish(B::pack(&mut batch, tensor, &request));
                handed_over.push(hand_over);
            } else {
                // Encoded at once, one after the other: only one of them is there in both forms at a time.
                let kept = hand_over.keep(&tensor);
                kept.replace(B::pack(&mut batch, tensor, &request));
            }
        }
        B::submit(batch);
        drop(handed_over);
    }

    /// Whether the tensor is large enough to be packed.
    fn packs(&self, storage: &Storage<B>) -> bool {
        storage.shape.num_elements() >= self.config.min_elements
            && storage.bytes() >= self.budget.least(&self.stats)
    }

    /// What an encode for this device needs.
    pub(crate) fn request(&self) -> PackRequest {
        PackRequest {
            codec: self.config.codec(),
            origin: Origin::default(),
            verify: self.config.verify,
            spill_reserve: self.budget.spill_reserve(&self.config, &self.stats),
            confirm: self.short.load(Relaxed),
            slab_bytes: self.budget.slab_bytes(&self.stats),
            stats: self.stats.clone(),
            #[cfg(test)]
            fault: crate::store::inject::current(),
        }
    }
}

/// The fewest elements that a tensor is managed with, though not packed: a large one may be derived from it.
const SMALLEST: usize = 1024;

/// Whether a tensor of this type and size is one to manage; counts those that are not.
pub(crate) fn admits<B: PackedStore>(
    residency: &Residency<B>,
    dtype: DType,
    elements: usize,
) -> bool {
    if dtype != DType::BF16 {
        residency.stats.on_other_dtype();
        false
    } else if elements < residency.config.min_elements.min(SMALLEST)
        || elements as u64 > lct_kernels::layout::MAX_VALUES
    {
        residency.stats.on_small();
        false
    } else {
        true
    }
}

/// Counts an int or bool tensor that an operation returned.
pub(crate) fn passed_int_bool<B: PackedStore>(device: &Device<B>) {
    Residency::<B>::of(device).stats.on_int_bool();
}

/// Tells the residency of `device` that a lazy backend's plans break here.
pub(crate) fn natural_break<B: PackedStore>(device: &Device<B>) {
    if B::LAZY {
        Residency::<B>::of(device).natural_break(device);
    }
}
