//! A logical device with its one queue, and owners for what is made of it.
//!
//! One thread owns all of it: nothing here can be sent to another. After a failure nothing is torn down, see
//! [`Gpu::failed`].
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ash::vk;
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings};
use twinband_protocol::{Fault, FaultCode};

use super::fault::fault;
use super::instance::Found;

/// Memory is taken from the driver in pieces of this size; what is larger gets a piece of its own.
const PIECE: u64 = 4 << 20;

/// One call waits no longer than this, so that a driver that ignores its time limit shows in a debugger, and one that
/// comes back too early cannot keep a core busy.
const SLICE: Duration = Duration::from_millis(100);

/// The engine's deadline is shorter. This one is for an engine that does not look.
const PATIENCE: Duration = Duration::from_secs(60);

/// The functions used of a device. ash would put a panic in the place of a missing one.
const FUNCTIONS: [&CStr; 43] = [
    c"vkAllocateCommandBuffers",
    c"vkAllocateDescriptorSets",
    c"vkAllocateMemory",
    c"vkBeginCommandBuffer",
    c"vkBindBufferMemory",
    c"vkCmdBindDescriptorSets",
    c"vkCmdBindPipeline",
    c"vkCmdCopyBuffer",
    c"vkCmdDispatch",
    c"vkCmdPipelineBarrier",
    c"vkCmdPushConstants",
    c"vkCreateBuffer",
    c"vkCreateCommandPool",
    c"vkCreateComputePipelines",
    c"vkCreateDescriptorPool",
    c"vkCreateDescriptorSetLayout",
    c"vkCreateFence",
    c"vkCreatePipelineCache",
    c"vkCreatePipelineLayout",
    c"vkCreateShaderModule",
    c"vkDestroyBuffer",
    c"vkDestroyCommandPool",
    c"vkDestroyDescriptorPool",
    c"vkDestroyDescriptorSetLayout",
    c"vkDestroyDevice",
    c"vkDestroyFence",
    c"vkDestroyPipeline",
    c"vkDestroyPipelineCache",
    c"vkDestroyPipelineLayout",
    c"vkDestroyShaderModule",
    c"vkEndCommandBuffer",
    c"vkFlushMappedMemoryRanges",
    c"vkFreeMemory",
    c"vkGetBufferMemoryRequirements",
    c"vkGetDeviceQueue",
    c"vkGetPipelineCacheData",
    c"vkInvalidateMappedMemoryRanges",
    c"vkMapMemory",
    c"vkQueueSubmit",
    c"vkResetFences",
    c"vkUnmapMemory",
    c"vkUpdateDescriptorSets",
    c"vkWaitForFences",
];

/// An open device.
pub(super) struct Gpu {
    pub raw: ash::Device,
    pub found: Found,
    /// Properties of the memory types, in order.
    pub memory: Vec<vk::MemoryPropertyFlags>,
    queue: vk::Queue,
    pub family: u32,
    /// `None` only while the device is being torn down.
    pub allocator: RefCell<Option<Allocator>>,
}

impl Gpu {
    pub fn open(found: Found) -> Result<Rc<Self>, Fault> {
        let instance = found.instance.clone();
        let family =
            found.family.ok_or_else(|| fault(FaultCode::NoFitDevice, "the device cannot compute"))?;
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        // No extension and no feature: what is used is in the core of Vulkan 1.0.
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let mut handle = vk::Device::null();
        let create = instance.raw.fp_v1_0().create_device;
        // SAFETY: the device was listed by this instance; `info` and what it points to live until the call returns.
        let result = unsafe { create(found.physical, &info, std::ptr::null(), &raw mut handle) };
        if result != vk::Result::SUCCESS || handle == vk::Device::null() {
            return Err(instance.failed("open the device")(result));
        }
        let get = instance.raw.fp_v1_0().get_device_proc_addr;
        // SAFETY: the device was just made.
        let missing = FUNCTIONS.into_iter().find(|n| unsafe { get(handle, n.as_ptr()) }.is_none());
        if let Some(missing) = missing {
            instance.dead.set(true);
            return Err(fault(FaultCode::Driver, format!("the driver has no {}", missing.to_string_lossy())));
        }
        // SAFETY: the handle belongs to this instance; the functions used exist.
        let raw = unsafe { ash::Device::load(instance.raw.fp_v1_0(), handle) };
        // SAFETY: the device was made with one queue of this family.
        let queue = unsafe { raw.get_device_queue(family, 0) };
        // SAFETY: the device was listed by this instance.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(found.physical) };
        let types = memory.memory_types.iter().take(memory.memory_type_count as usize);
        let memory = types.map(|t| t.property_flags).collect();
        let allocator = Allocator::new(&AllocatorCreateDesc {
            instance: without_heap_sizes(&instance.raw),
            device: raw.clone(),
            physical_device: found.physical,
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(PIECE, PIECE),
        });
        let allocator = allocator.map_err(|e| {
            instance.dead.set(true);
            fault(FaultCode::Driver, format!("no memory allocator: {e}"))
        })?;
        Ok(Rc::new(Self { raw, memory, queue, family, allocator: RefCell::new(Some(allocator)), found }))
    }

    /// A fault of the driver. From then on no call is made any more: owners drop without a word, because tearing down
    /// what is broken is where drivers crash.
    pub fn failed(&self, what: &'static str) -> impl Fn(vk::Result) -> Fault {
        self.found.instance.failed(what)
    }

    /// The same for what is not the driver's own report.
    pub fn broken(&self, code: FaultCode, text: impl Into<String>) -> Fault {
        self.found.instance.dead.set(true);
        fault(code, text)
    }

    pub fn is_dead(&self) -> bool {
        self.found.instance.dead.get()
    }

    /// An owner for a handle that was just made.
    pub fn own<T: Copy>(self: &Rc<Self>, raw: T, destroy: fn(&ash::Device, T)) -> Owned<T> {
        Owned { gpu: self.clone(), raw, destroy }
    }

    pub fn fence(self: &Rc<Self>) -> Result<Owned<vk::Fence>, Fault> {
        // SAFETY: the device lives.
        let fence = unsafe { self.raw.create_fence(&vk::FenceCreateInfo::default(), None) };
        let fence = fence.map_err(self.failed("create a fence"))?;
        // SAFETY: whoever drops a fence has waited for it.
        Ok(self.own(fence, |device, fence| unsafe { device.destroy_fence(fence, None) }))
    }

    /// A pool and as many command buffers of it, which live as long.
    pub fn commands(
        self: &Rc<Self>,
        count: u32,
    ) -> Result<(Owned<vk::CommandPool>, Vec<vk::CommandBuffer>), Fault> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(self.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device lives and has this queue family.
        let pool = unsafe { self.raw.create_command_pool(&info, None) };
        let pool = pool.map_err(self.failed("create a command pool"))?;
        // SAFETY: whoever drops a pool has waited for its command buffers.
        let pool = self.own(pool, |device, pool| unsafe { device.destroy_command_pool(pool, None) });
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool.raw)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(count);
        // SAFETY: the pool was just made.
        let buffers = unsafe { self.raw.allocate_command_buffers(&info) };
        Ok((pool, buffers.map_err(self.failed("allocate command buffers"))?))
    }

    /// Submits each command buffer on its own, in order, and waits for the last. Returns the time it took.
    pub fn run(&self, buffers: &[vk::CommandBuffer], fence: vk::Fence) -> Result<Duration, Fault> {
        // SAFETY: nothing uses the fence: every submission is waited for before the next.
        unsafe { self.raw.reset_fences(&[fence]) }.map_err(self.failed("reset a fence"))?;
        let begin = Instant::now();
        for (i, buffer) in buffers.iter().enumerate() {
            let buffer = [*buffer];
            let info = [vk::SubmitInfo::default().command_buffers(&buffer)];
            // Of several the last one's fence stands for all: the queue works in order.
            let fence = if i + 1 == buffers.len() { fence } else { vk::Fence::null() };
            // SAFETY: the buffers are recorded and not in use; this thread alone uses the queue.
            unsafe { self.raw.queue_submit(self.queue, &info, fence) }.map_err(self.failed("submit work"))?;
        }
        self.wait(fence, begin)?;
        Ok(begin.elapsed())
    }

    fn wait(&self, fence: vk::Fence, begin: Instant) -> Result<(), Fault> {
        let slice = u64::try_from(SLICE.as_nanos()).unwrap_or(u64::MAX);
        while begin.elapsed() < PATIENCE {
            let asked = Instant::now();
            // SAFETY: the fence lives and was submitted.
            match unsafe { self.raw.wait_for_fences(&[fence], true, slice) } {
                Ok(()) => return Ok(()),
                Err(vk::Result::TIMEOUT) => std::thread::sleep(SLICE.saturating_sub(asked.elapsed())),
                Err(error) => return Err(self.failed("wait for the device")(error)),
            }
        }
        let seconds = PATIENCE.as_secs();
        Err(self.broken(FaultCode::DeviceLost, format!("the device has not answered for {seconds} s")))
    }
}

/// The instance as the allocator should see it. The allocator refuses what is larger than a heap says it is, without
/// asking the driver; but some drivers report nothing or nonsense, so every heap is made to look as large as can be, and
/// the driver decides.
fn without_heap_sizes(instance: &ash::Instance) -> ash::Instance {
    type Get = vk::PFN_vkGetPhysicalDeviceMemoryProperties;
    thread_local! {
        // Of the instance in use: a device is opened and its allocator made by one thread, one after the other.
        static REAL: Cell<Option<Get>> = const { Cell::new(None) };
    }

    unsafe extern "system" fn get(
        physical: vk::PhysicalDevice,
        out: *mut vk::PhysicalDeviceMemoryProperties,
    ) {
        let Some(real) = REAL.get() else { return };
        // SAFETY: the caller's arguments are handed on to the function that they are for.
        unsafe { real(physical, out) };
        // SAFETY: it has just been written.
        unsafe { &mut *out }.memory_heaps.iter_mut().for_each(|heap| heap.size = vk::WHOLE_SIZE);
    }

    let mut functions = instance.fp_v1_0().clone();
    REAL.set(Some(functions.get_physical_device_memory_properties));
    functions.get_physical_device_memory_properties = get;
    let (newer, newest) = (instance.fp_v1_1().clone(), instance.fp_v1_3().clone());
    ash::Instance::from_parts_1_3(instance.handle(), functions, newer, newest)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let allocator = self.allocator.take();
        if self.is_dead() {
            // Its destructor would call the driver.
            std::mem::forget(allocator);
            return;
        }
        drop(allocator);
        // SAFETY: everything made of the device holds it, so nothing of it is left; all work was waited for.
        unsafe { self.raw.destroy_device(None) };
    }
}

/// A handle that is destroyed when it is dropped, unless the device has failed.
pub(super) struct Owned<T: Copy> {
    gpu: Rc<Gpu>,
    pub raw: T,
    destroy: fn(&ash::Device, T),
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.gpu.is_dead() {
            (self.destroy)(&self.gpu.raw, self.raw);
        }
    }
}
