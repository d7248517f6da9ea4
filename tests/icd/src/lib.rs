//! A Vulkan driver for tests. It hands every call on to the driver whose library `TWINBAND_ICD_REAL` names and fails,
//! lies or dawdles where it is told to (`orders.rs`). Without a real driver it has no function at all.
//!
//! One instance, one device and one queue a process are all that it is good for.
#![allow(unsafe_code, reason = "a driver: it is called by, and calls, functions of the C interface")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use ash::vk;
use ash::vk::Handle as _;
use libloading::os::unix::Library;

use orders::{Verdict, carry_out, count, number, reach, value};

mod orders;

type Function = unsafe extern "system" fn();
type GetInstance = unsafe extern "system" fn(vk::Instance, *const c_char) -> Option<Function>;
type GetDevice = unsafe extern "system" fn(vk::Device, *const c_char) -> Option<Function>;
type Negotiate = unsafe extern "system" fn(*mut u32) -> vk::Result;

/// Buffers larger than this are not corrupted: a matrix is, its products are not.
const SMALL: u64 = 8192;

static REAL: OnceLock<Option<Library>> = OnceLock::new();
static INSTANCE: Mutex<u64> = Mutex::new(0);
/// The number of the job that waits are for; 0 while they are for something else.
static JOB: AtomicU64 = AtomicU64::new(0);
static KNOWN: Mutex<Known> =
    Mutex::new(Known { computing: Vec::new(), mapped: Vec::new(), sizes: Vec::new(), bound: Vec::new() });

/// What is known of command buffers, and for corruption of memory and buffers.
struct Known {
    /// Command buffers that dispatch.
    computing: Vec<vk::CommandBuffer>,
    /// Memory and the address of its first byte.
    mapped: Vec<(vk::DeviceMemory, usize)>,
    sizes: Vec<(vk::Buffer, u64)>,
    bound: Vec<(vk::Buffer, vk::DeviceMemory, u64)>,
}

fn known<R>(act: impl FnOnce(&mut Known) -> R) -> Option<R> {
    KNOWN.lock().ok().map(|mut known| act(&mut known))
}

/// A function of the real library.
fn symbol<T: Copy>(name: &CStr) -> Option<T> {
    let library = REAL.get_or_init(|| {
        let path = std::env::var_os("TWINBAND_ICD_REAL")?;
        // SAFETY: a driver that was named by the tests.
        let library = unsafe { Library::new(&path) };
        library.inspect_err(|e| eprintln!("TWINBAND_ICD_REAL: {e}")).ok()
    });
    // SAFETY: the callers name the function with its type.
    unsafe { library.as_ref()?.get::<T>(name.to_bytes_with_nul()) }.ok().map(|found| *found)
}

fn real(instance: vk::Instance, name: &CStr) -> Option<Function> {
    let get = symbol::<GetInstance>(c"vk_icdGetInstanceProcAddr")?;
    // SAFETY: the instance is the real driver's.
    unsafe { get(instance, name.as_ptr()) }
}

/// The real driver's function of a type by its name; it was there when the hook was handed out.
macro_rules! next {
    ($name:literal, $type:ty) => {{
        let instance = INSTANCE.lock().map_or(0, |handle| *handle);
        let function = real(vk::Instance::from_raw(instance), $name).expect("the real driver has it");
        // SAFETY: the type is that of the function of this name.
        let typed: $type = unsafe { transmute::<Function, $type>(function) };
        typed
    }};
}

/// How a driver is greeted by a loader.
#[unsafe(no_mangle)]
unsafe extern "system" fn vk_icdNegotiateLoaderICDInterfaceVersion(version: *mut u32) -> vk::Result {
    if reach("init") != Verdict::Pass {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    match symbol::<Negotiate>(c"vk_icdNegotiateLoaderICDInterfaceVersion") {
        // SAFETY: the caller's pointer is handed on.
        Some(negotiate) => unsafe { negotiate(version) },
        None => vk::Result::SUCCESS,
    }
}

/// As a layer it does nothing but crash: layers of other programs do, in every Vulkan program of a machine.
#[unsafe(no_mangle)]
unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(_: *mut c_void) -> vk::Result {
    std::process::abort();
}

/// Where functions come from.
#[unsafe(no_mangle)]
unsafe extern "system" fn vk_icdGetInstanceProcAddr(
    instance: vk::Instance,
    name: *const c_char,
) -> Option<Function> {
    // SAFETY: callers pass a C string.
    let name = unsafe { CStr::from_ptr(name) };
    real(instance, name).map(|function| hook(name).unwrap_or(function))
}

/// The same for functions that take a physical device.
#[unsafe(no_mangle)]
unsafe extern "system" fn vk_icdGetPhysicalDeviceProcAddr(
    instance: vk::Instance,
    name: *const c_char,
) -> Option<Function> {
    let get = symbol::<GetInstance>(c"vk_icdGetPhysicalDeviceProcAddr")?;
    // SAFETY: the caller's arguments are handed on.
    let function = unsafe { get(instance, name) }?;
    // SAFETY: callers pass a C string.
    Some(hook(unsafe { CStr::from_ptr(name) }).unwrap_or(function))
}

unsafe extern "system" fn get_device_proc_addr(device: vk::Device, name: *const c_char) -> Option<Function> {
    let get = next!(c"vkGetDeviceProcAddr", GetDevice);
    // SAFETY: the caller's arguments are handed on.
    let function = unsafe { get(device, name) }?;
    // SAFETY: callers pass a C string.
    Some(hook(unsafe { CStr::from_ptr(name) }).unwrap_or(function))
}

/// Our function in place of the real one.
fn hook(name: &CStr) -> Option<Function> {
    macro_rules! hooks {
        ($($name:literal => $function:ident: $type:ty,)*) => {
            match name.to_str().ok()? {
                $($name => {
                    let typed: $type = $function;
                    // SAFETY: callers turn it back into the type that its name stands for.
                    Some(unsafe { transmute::<$type, Function>(typed) })
                })*
                _ => None,
            }
        };
    }
    hooks! {
        "vkGetInstanceProcAddr" => vk_icdGetInstanceProcAddr: GetInstance,
        "vkGetDeviceProcAddr" => get_device_proc_addr: GetDevice,
        "vkCreateInstance" => create_instance: vk::PFN_vkCreateInstance,
        "vkEnumeratePhysicalDevices" => enumerate: vk::PFN_vkEnumeratePhysicalDevices,
        "vkGetPhysicalDeviceProperties" => properties: vk::PFN_vkGetPhysicalDeviceProperties,
        "vkGetPhysicalDeviceProperties2" => properties2: vk::PFN_vkGetPhysicalDeviceProperties2,
        "vkGetPhysicalDeviceProperties2KHR" => properties2_khr: vk::PFN_vkGetPhysicalDeviceProperties2,
        "vkGetPhysicalDeviceMemoryProperties" => memory: vk::PFN_vkGetPhysicalDeviceMemoryProperties,
        "vkCreateDevice" => create_device: vk::PFN_vkCreateDevice,
        "vkDestroyDevice" => destroy_device: vk::PFN_vkDestroyDevice,
        "vkAllocateMemory" => allocate: vk::PFN_vkAllocateMemory,
        "vkFreeMemory" => free: vk::PFN_vkFreeMemory,
        "vkMapMemory" => map: vk::PFN_vkMapMemory,
        "vkCreateBuffer" => create_buffer: vk::PFN_vkCreateBuffer,
        "vkDestroyBuffer" => destroy_buffer: vk::PFN_vkDestroyBuffer,
        "vkBindBufferMemory" => bind: vk::PFN_vkBindBufferMemory,
        "vkCreateComputePipelines" => create_pipelines: vk::PFN_vkCreateComputePipelines,
        "vkCreateCommandPool" => create_pool: vk::PFN_vkCreateCommandPool,
        "vkBeginCommandBuffer" => begin: vk::PFN_vkBeginCommandBuffer,
        "vkCmdDispatch" => dispatch: vk::PFN_vkCmdDispatch,
        "vkQueueSubmit" => submit: vk::PFN_vkQueueSubmit,
        "vkWaitForFences" => wait: vk::PFN_vkWaitForFences,
    }
}

/// Reaches a stage, and returns from the hook if that is to fail. The second is what the stage's `fail` means.
macro_rules! stage {
    ($name:literal, $fail:ident) => {
        match reach($name) {
            Verdict::Pass | Verdict::Corrupt => {}
            Verdict::Fail => return vk::Result::$fail,
            Verdict::Lost => return vk::Result::ERROR_DEVICE_LOST,
            Verdict::Timeout => return vk::Result::TIMEOUT,
        }
    };
}

/// A hook: its arguments are those of the real function, and every call of `next` in it hands them on.
macro_rules! hooked {
    ($(fn $hook:ident, $name:literal: $type:ty, ($($arg:ident: $arg_type:ty),*) $(-> $result:ty)?,
       |$next:ident| $body:block)*) => {$(
        unsafe extern "system" fn $hook($($arg: $arg_type),*) $(-> $result)? {
            let $next = || {
                let function = next!($name, $type);
                // SAFETY: the caller's arguments are handed on as they came.
                unsafe { function($($arg),*) }
            };
            $body
        }
    )*};
}

type Allocator<'a> = *const vk::AllocationCallbacks<'a>;

hooked! {
    fn create_instance, c"vkCreateInstance": vk::PFN_vkCreateInstance,
    (info: *const vk::InstanceCreateInfo<'_>, allocator: Allocator<'_>, out: *mut vk::Instance) -> vk::Result, |next| {
        stage!("instance", ERROR_INITIALIZATION_FAILED);
        let result = next();
        if let (vk::Result::SUCCESS, Ok(mut instance)) = (result, INSTANCE.lock()) {
            // SAFETY: the real driver has just written the handle.
            *instance = unsafe { *out }.as_raw();
        }
        result
    }

    fn enumerate, c"vkEnumeratePhysicalDevices": vk::PFN_vkEnumeratePhysicalDevices,
    (instance: vk::Instance, count: *mut u32, out: *mut vk::PhysicalDevice) -> vk::Result, |next| {
        stage!("enumerate", ERROR_UNKNOWN);
        next()
    }

    fn properties, c"vkGetPhysicalDeviceProperties": vk::PFN_vkGetPhysicalDeviceProperties,
    (device: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceProperties), |next| {
        next();
        // SAFETY: the real driver has just written it.
        lie(unsafe { &mut *out });
    }

    fn properties2, c"vkGetPhysicalDeviceProperties2": vk::PFN_vkGetPhysicalDeviceProperties2,
    (device: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceProperties2<'_>), |next| {
        next();
        // SAFETY: as above.
        lie(unsafe { &mut (*out).properties });
    }

    fn properties2_khr, c"vkGetPhysicalDeviceProperties2KHR": vk::PFN_vkGetPhysicalDeviceProperties2,
    (device: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceProperties2<'_>), |next| {
        next();
        // SAFETY: as above.
        lie(unsafe { &mut (*out).properties });
    }

    fn memory, c"vkGetPhysicalDeviceMemoryProperties": vk::PFN_vkGetPhysicalDeviceMemoryProperties,
    (device: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceMemoryProperties), |next| {
        next();
        if let Some(size) = number("heap") {
            // SAFETY: the real driver has just written it.
            unsafe { &mut *out }.memory_heaps.iter_mut().for_each(|heap| heap.size = size);
        }
    }

    fn create_device, c"vkCreateDevice": vk::PFN_vkCreateDevice,
    (physical: vk::PhysicalDevice, info: *const vk::DeviceCreateInfo<'_>, allocator: Allocator<'_>,
     out: *mut vk::Device) -> vk::Result, |next| {
        stage!("device", ERROR_INITIALIZATION_FAILED);
        next()
    }

    fn destroy_device, c"vkDestroyDevice": vk::PFN_vkDestroyDevice,
    (device: vk::Device, allocator: Allocator<'_>), |next| {
        let _ = reach("end");
        next();
    }

    fn allocate, c"vkAllocateMemory": vk::PFN_vkAllocateMemory,
    (device: vk::Device, info: *const vk::MemoryAllocateInfo<'_>, allocator: Allocator<'_>,
     out: *mut vk::DeviceMemory) -> vk::Result, |next| {
        stage!("alloc", ERROR_OUT_OF_DEVICE_MEMORY);
        // SAFETY: callers pass a structure.
        if unsafe { (*info).allocation_size } > number("alloc-max").unwrap_or(u64::MAX) {
            return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
        }
        next()
    }

    fn free, c"vkFreeMemory": vk::PFN_vkFreeMemory,
    (device: vk::Device, memory: vk::DeviceMemory, allocator: Allocator<'_>), |next| {
        known(|k| k.mapped.retain(|(m, _)| *m != memory));
        next();
    }

    fn map, c"vkMapMemory": vk::PFN_vkMapMemory,
    (device: vk::Device, memory: vk::DeviceMemory, offset: u64, size: u64, flags: vk::MemoryMapFlags,
     out: *mut *mut c_void) -> vk::Result, |next| {
        let result = next();
        if result == vk::Result::SUCCESS && offset == 0 {
            // SAFETY: the real driver has just written the address.
            let address = unsafe { *out }.expose_provenance();
            known(|k| k.mapped.push((memory, address)));
        }
        result
    }

    fn create_buffer, c"vkCreateBuffer": vk::PFN_vkCreateBuffer,
    (device: vk::Device, info: *const vk::BufferCreateInfo<'_>, allocator: Allocator<'_>,
     out: *mut vk::Buffer) -> vk::Result, |next| {
        let result = next();
        if result == vk::Result::SUCCESS {
            // SAFETY: callers pass a structure, and the real driver has just written the handle.
            let (buffer, size) = unsafe { (*out, (*info).size) };
            known(|k| k.sizes.push((buffer, size)));
        }
        result
    }

    fn destroy_buffer, c"vkDestroyBuffer": vk::PFN_vkDestroyBuffer,
    (device: vk::Device, buffer: vk::Buffer, allocator: Allocator<'_>), |next| {
        known(|k| {
            k.sizes.retain(|(b, _)| *b != buffer);
            k.bound.retain(|(b, _, _)| *b != buffer);
        });
        next();
    }

    fn bind, c"vkBindBufferMemory": vk::PFN_vkBindBufferMemory,
    (device: vk::Device, buffer: vk::Buffer, memory: vk::DeviceMemory, offset: u64) -> vk::Result, |next| {
        known(|k| k.bound.push((buffer, memory, offset)));
        next()
    }

    fn create_pipelines, c"vkCreateComputePipelines": vk::PFN_vkCreateComputePipelines,
    (device: vk::Device, cache: vk::PipelineCache, count: u32, infos: *const vk::ComputePipelineCreateInfo<'_>,
     allocator: Allocator<'_>, out: *mut vk::Pipeline) -> vk::Result, |next| {
        stage!("pipe", ERROR_UNKNOWN);
        next()
    }

    fn create_pool, c"vkCreateCommandPool": vk::PFN_vkCreateCommandPool,
    (device: vk::Device, info: *const vk::CommandPoolCreateInfo<'_>, allocator: Allocator<'_>,
     out: *mut vk::CommandPool) -> vk::Result, |next| {
        stage!("pool", ERROR_OUT_OF_HOST_MEMORY);
        next()
    }

    fn begin, c"vkBeginCommandBuffer": vk::PFN_vkBeginCommandBuffer,
    (buffer: vk::CommandBuffer, info: *const vk::CommandBufferBeginInfo<'_>) -> vk::Result, |next| {
        known(|k| k.computing.retain(|b| *b != buffer));
        next()
    }

    fn dispatch, c"vkCmdDispatch": vk::PFN_vkCmdDispatch,
    (buffer: vk::CommandBuffer, x: u32, y: u32, z: u32), |next| {
        known(|k| k.computing.push(buffer));
        next();
    }

    fn submit, c"vkQueueSubmit": vk::PFN_vkQueueSubmit,
    (queue: vk::Queue, submits: u32, infos: *const vk::SubmitInfo<'_>, fence: vk::Fence) -> vk::Result, |next| {
        stage!("submit", ERROR_OUT_OF_HOST_MEMORY);
        if fence != vk::Fence::null() {
            // SAFETY: callers pass an array of this length.
            let job = unsafe { computes(infos, submits) };
            JOB.store(if job { count("job") } else { 0 }, Ordering::Relaxed);
        }
        next()
    }
}

unsafe extern "system" fn wait(
    device: vk::Device,
    count: u32,
    fences: *const vk::Fence,
    all: vk::Bool32,
    timeout: u64,
) -> vk::Result {
    let mut verdict = reach("wait");
    let job = JOB.load(Ordering::Relaxed);
    if verdict == Verdict::Pass && job != 0 {
        verdict = carry_out("job", job);
    }
    match verdict {
        Verdict::Pass | Verdict::Corrupt => {}
        Verdict::Fail => return vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        Verdict::Lost => return vk::Result::ERROR_DEVICE_LOST,
        Verdict::Timeout => return vk::Result::TIMEOUT,
    }
    let next = next!(c"vkWaitForFences", vk::PFN_vkWaitForFences);
    // SAFETY: the caller's arguments are handed on.
    let result = unsafe { next(device, count, fences, all, timeout) };
    if verdict == Verdict::Corrupt && result == vk::Result::SUCCESS {
        known(corrupt);
    }
    result
}

/// Whether one of the command buffers dispatches.
///
/// # Safety
/// There are as many structures at `infos`.
unsafe fn computes(infos: *const vk::SubmitInfo<'_>, count: u32) -> bool {
    (0..count as usize).any(|i| {
        // SAFETY: as promised by the caller.
        let info = unsafe { &*infos.add(i) };
        (0..info.command_buffer_count as usize).any(|j| {
            // SAFETY: callers of the driver pass as many command buffers as they say.
            let buffer = unsafe { *info.p_command_buffers.add(j) };
            known(|k| k.computing.contains(&buffer)) == Some(true)
        })
    })
}

/// Flips the highest bit of the mantissa of the first number of every small buffer that is mapped.
fn corrupt(known: &mut Known) {
    for (buffer, memory, offset) in &known.bound {
        let small = known.sizes.iter().any(|(b, size)| b == buffer && (4..=SMALL).contains(size));
        let mapped = known.mapped.iter().find(|(m, _)| m == memory);
        if let Some((_, address)) = mapped.filter(|_| small) {
            let word = std::ptr::with_exposed_provenance_mut::<u32>(address + *offset as usize);
            // SAFETY: the buffer has at least this word, its memory is mapped, and no work is under way.
            unsafe { word.write_volatile(word.read_volatile() ^ 0x0040_0000) };
        }
    }
}

fn lie(properties: &mut vk::PhysicalDeviceProperties) {
    match value("type").as_deref() {
        Some("discrete") => properties.device_type = vk::PhysicalDeviceType::DISCRETE_GPU,
        Some("integrated") => properties.device_type = vk::PhysicalDeviceType::INTEGRATED_GPU,
        _ => {}
    }
    if let Some(name) = value("name") {
        let bytes = name.bytes().chain([0]).take(properties.device_name.len() - 1);
        for (to, from) in properties.device_name.iter_mut().zip(bytes) {
            *to = from as c_char;
        }
    }
    let limits = &mut properties.limits;
    if let Some(range) = number("ssbo-range") {
        limits.max_storage_buffer_range = range;
    }
    if let Some(count) = number("wg-count") {
        limits.max_compute_work_group_count = [count; 3];
    }
    if let Some(invocations) = number::<u32>("wg-inv") {
        limits.max_compute_work_group_invocations = invocations;
        limits.max_compute_work_group_size = limits.max_compute_work_group_size.map(|n| n.min(invocations));
    }
    if let Some(bytes) = number("smem") {
        limits.max_compute_shared_memory_size = bytes;
    }
}
