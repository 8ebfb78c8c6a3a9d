//! Times device work with CUDA events on the stream that CubeCL works on.
//!
//! CubeCL does not tell its stream, so CUPTI, which is told of every stream that is made, passes it on.

use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::{result, sys};
use libloading::{Library, Symbol};

/// How often a timer's work is submitted to find its stream.
const REPEATS: usize = 20;

/// Contexts and streams in the order in which they were made.
static STREAMS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// CUPTI's number for callbacks about resources, and its number for a new stream among these.
const RESOURCE: u32 = 3;
const STREAM_CREATED: u32 = 3;

/// `CUpti_ResourceData`, as far as it is read.
#[repr(C)]
struct ResourceData {
    context: *mut c_void,
    stream: *mut c_void,
}

type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

unsafe extern "C" fn on_resource(_: *mut c_void, domain: u32, what: u32, data: *const c_void) {
    if domain == RESOURCE && what == STREAM_CREATED && !data.is_null() {
        // SAFETY: CUPTI passes this structure with resource callbacks, valid for the call.
        let data = unsafe { &*data.cast::<ResourceData>() };
        let found = (data.context as usize, data.stream as usize);
        STREAMS.lock().expect("nothing panics under it").push(found);
    }
}

/// Listens for new streams. To be called before the first CUDA call.
pub fn listen() -> Result<(), Box<dyn std::error::Error>> {
    let open = |name| {
        // SAFETY: CUPTI's initialization has no requirements.
        unsafe { Library::new(name) }
    };
    let library = open("libcupti.so.13")
        .or_else(|_| open("libcupti.so.12"))
        .or_else(|_| open("libcupti.so"))
        .map_err(|error| {
            format!("CUPTI is needed for timing; add its folder to LD_LIBRARY_PATH ({error})")
        })?;
    let mut subscriber: *mut c_void = std::ptr::null_mut();
    // SAFETY: the signatures are those of CUPTI's headers; the callback keeps no reference.
    unsafe {
        let subscribe: Symbol<
            '_,
            unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> u32,
        > = library.get(b"cuptiSubscribe")?;
        let enable: Symbol<'_, unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> u32> =
            library.get(b"cuptiEnableCallback")?;
        for code in [
            subscribe(&mut subscriber, on_resource, std::ptr::null_mut()),
            enable(1, subscriber, RESOURCE, STREAM_CREATED),
        ] {
            if code != 0 {
                return Err(format!("CUPTI refuses a subscription with code {code}").into());
            }
        }
    }
    // It stays loaded, as it calls back.
    std::mem::forget(library);
    Ok(())
}

/// Two events on one stream.
pub struct Timer {
    stream: sys::CUstream,
    start: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    /// The timer of the stream on which `work` runs, which submits work that takes the device longer than the host.
    pub fn find(mut work: impl FnMut()) -> Result<Self, Box<dyn std::error::Error>> {
        work();
        let streams = STREAMS.lock().expect("nothing panics under it").clone();
        let mut best: Option<(f64, Self)> = None;
        for &(context, stream) in &streams {
            // SAFETY: the context was made by CubeCL and lives as long as its clients.
            unsafe { result::ctx::set_current(context as sys::CUcontext) }?;
            let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
            let timer = Self {
                stream: stream as sys::CUstream,
                start: event()?,
                end: event()?,
            };
            timer.start()?;
            // Events on an idle stream are only as far apart as the host takes to submit the work, which may hesitate once.
            (0..REPEATS).for_each(|_| work());
            let elapsed = timer.stop()?;
            if best.as_ref().is_none_or(|(most, _)| elapsed > *most) {
                best = Some((elapsed, timer));
            }
        }
        best.map(|(_, timer)| timer)
            .ok_or_else(|| "CUPTI told of no stream".into())
    }

    /// Marks the beginning, behind all work that was submitted.
    pub fn start(&self) -> Result<(), Box<dyn std::error::Error>> {
        // SAFETY: event and stream belong to the current context.
        Ok(unsafe { result::event::record(self.start, self.stream) }?)
    }

    /// Marks the end, waits for it and returns the microseconds since the beginning.
    pub fn stop(&self) -> Result<f64, Box<dyn std::error::Error>> {
        // SAFETY: as above.
        unsafe {
            result::event::record(self.end, self.stream)?;
            result::event::synchronize(self.end)?;
            Ok(result::event::elapsed(self.start, self.end)? as f64 * 1e3)
        }
    }
}
