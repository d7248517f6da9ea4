//! An instance and the devices that it shows.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::cell::Cell;
use std::ffi::CStr;
use std::rc::Rc;

use ash::{khr, vk};
use twinband_protocol::{Device, DeviceKind, Fault, FaultCode, TILE};

use super::fault::{fault, from_result, name};
use super::format;
use super::loader::Entry;

/// The functions used of an instance. ash would put a panic in the place of a missing one.
const FUNCTIONS: [&CStr; 7] = [
    c"vkEnumeratePhysicalDevices",
    c"vkGetPhysicalDeviceProperties",
    c"vkGetPhysicalDeviceMemoryProperties",
    c"vkGetPhysicalDeviceQueueFamilyProperties",
    c"vkEnumerateDeviceExtensionProperties",
    c"vkCreateDevice",
    c"vkGetDeviceProcAddr",
];

/// A Vulkan instance of version 1.0, without layers of our own.
///
/// It is never destroyed: the process soon ends anyway, and tearing down is where some drivers crash, even those that
/// nobody needs.
pub(super) struct Instance {
    pub raw: ash::Instance,
    properties2: Option<khr::get_physical_device_properties2::Instance>,
    manifest: Option<String>,
    /// Set when anything failed: then nothing more is called, not even to tear down.
    pub dead: Cell<bool>,
}

/// A device that was found.
#[derive(Clone)]
pub(super) struct Found {
    pub instance: Rc<Instance>,
    pub physical: vk::PhysicalDevice,
    /// A queue family that computes.
    pub family: Option<u32>,
    pub limits: vk::PhysicalDeviceLimits,
    pub cache_uuid: [u8; vk::UUID_SIZE],
    /// Most bytes of one allocation, if the driver says.
    pub max_allocation: Option<u64>,
    /// One driver on top of another.
    pub layered: bool,
    pub device: Device,
}

/// The layers that the loader knows.
pub(super) fn layers(entry: &Entry) -> Vec<String> {
    let name = c"vkEnumerateInstanceLayerProperties";
    // SAFETY: this name may be asked for without an instance.
    let present = unsafe { entry.raw.get_instance_proc_addr(vk::Instance::null(), name.as_ptr()) }.is_some();
    if entry.manifest.is_some() || !present {
        return Vec::new();
    }
    // SAFETY: the function exists.
    let layers = unsafe { entry.raw.enumerate_instance_layer_properties() }.unwrap_or_default();
    layers.iter().map(|l| text(l.layer_name_as_c_str())).collect()
}

impl Instance {
    pub fn create(entry: &Entry) -> Result<Rc<Self>, Fault> {
        let by = entry.manifest.as_deref().unwrap_or("the Vulkan loader");
        // SAFETY: the function exists, the loader's module checked it.
        let offered = unsafe { entry.raw.enumerate_instance_extension_properties(None) }
            .map_err(|e| no_instance(by, "list extensions", e))?;
        let offers =
            |name: &CStr| offered.iter().any(|e| e.extension_name_as_c_str().is_ok_and(|n| n == name));
        // Both belong to Vulkan 1.1; with 1.0 they must be asked for. They tell a device's UUID.
        let wanted = [khr::get_physical_device_properties2::NAME, khr::external_memory_capabilities::NAME];
        let extensions: Vec<_> = wanted.into_iter().filter(|n| offers(n)).map(CStr::as_ptr).collect();
        let application = vk::ApplicationInfo::default()
            .application_name(c"twinband")
            .engine_name(c"twinband")
            .api_version(vk::API_VERSION_1_0);
        let info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_extension_names(&extensions);
        let mut handle = vk::Instance::null();
        // SAFETY: `info` and what it points to live until the call returns.
        let result =
            unsafe { (entry.raw.fp_v1_0().create_instance)(&info, std::ptr::null(), &raw mut handle) };
        if result != vk::Result::SUCCESS || handle == vk::Instance::null() {
            return Err(no_instance(by, "create an instance", result));
        }
        let function = |name: &CStr| {
            // SAFETY: the instance was just made.
            unsafe { entry.raw.get_instance_proc_addr(handle, name.as_ptr()) }.is_some()
        };
        if let Some(missing) = FUNCTIONS.into_iter().find(|n| !function(n)) {
            let missing = missing.to_string_lossy();
            return Err(fault(FaultCode::Driver, format!("{by} has no {missing}")));
        }
        // SAFETY: the handle belongs to this entry; the functions used exist.
        let raw = unsafe { ash::Instance::load(entry.raw.static_fn(), handle) };
        let properties2 = (extensions.len() == wanted.len()
            && function(c"vkGetPhysicalDeviceProperties2KHR"))
        .then(|| khr::get_physical_device_properties2::Instance::new(&entry.raw, &raw));
        Ok(Rc::new(Self { raw, properties2, manifest: entry.manifest.clone(), dead: Cell::new(false) }))
    }

    /// A fault of this instance's driver, after which it is left alone.
    pub fn failed(&self, what: &'static str) -> impl Fn(vk::Result) -> Fault {
        move |result| {
            self.dead.set(true);
            from_result(what, result)
        }
    }

    pub fn devices(self: &Rc<Self>) -> Result<Vec<Found>, Fault> {
        // SAFETY: the instance lives.
        match unsafe { self.raw.enumerate_physical_devices() } {
            Ok(devices) => devices.into_iter().map(|d| self.describe(d)).collect(),
            // What a loader without drivers and a driver without hardware say.
            Err(e @ (vk::Result::ERROR_INITIALIZATION_FAILED | vk::Result::ERROR_INCOMPATIBLE_DRIVER)) => {
                match self.manifest.as_deref() {
                    None => Ok(Vec::new()),
                    Some(by) => Err(fault(FaultCode::NoDevice, format!("{by} lists no device: {}", name(e)))),
                }
            }
            Err(error) => Err(self.failed("list devices")(error)),
        }
    }

    fn describe(self: &Rc<Self>, physical: vk::PhysicalDevice) -> Result<Found, Fault> {
        let raw = &self.raw;
        // SAFETY: the device was listed by this instance, for this and the next two calls.
        let properties = unsafe { raw.get_physical_device_properties(physical) };
        // SAFETY: as above.
        let memory = unsafe { raw.get_physical_device_memory_properties(physical) };
        // SAFETY: as above.
        let families = unsafe { raw.get_physical_device_queue_family_properties(physical) };
        let limits = properties.limits;
        let family = families
            .iter()
            .position(|f| f.queue_flags.contains(vk::QueueFlags::COMPUTE) && f.queue_count > 0)
            .and_then(|i| u32::try_from(i).ok());
        let device_name = text(properties.device_name_as_c_str());
        let extra = self.extra(physical, &properties);
        let kind = match properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        };
        let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
        let local = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)).map(|h| h.size);
        let short = shortcoming(&limits, family);
        let device = Device {
            backend: "vulkan".to_owned(),
            uuid: extra.uuid.unwrap_or_else(|| derived_uuid(&properties, &device_name)),
            kind,
            driver: extra.driver.unwrap_or_else(|| format!("vendor {:#06x}", properties.vendor_id)),
            driver_version: properties.driver_version,
            manifest: self.manifest.clone(),
            api_version: properties.api_version,
            memory: local.max().unwrap_or(0),
            limits: named_limits(&limits, extra.max_allocation),
            formats: if short.is_none() { format::codes() } else { Vec::new() },
            unfit: short.or_else(|| {
                (kind == DeviceKind::Cpu)
                    .then(|| "a CPU in disguise, used only with --gpu on or when named".to_owned())
            }),
            name: device_name,
        };
        Ok(Found {
            instance: self.clone(),
            physical,
            family,
            limits,
            cache_uuid: properties.pipeline_cache_uuid,
            max_allocation: extra.max_allocation,
            layered: extra.layered,
            device,
        })
    }

    /// What only newer interfaces tell.
    fn extra(&self, physical: vk::PhysicalDevice, properties: &vk::PhysicalDeviceProperties) -> Extra {
        let Some(properties2) = &self.properties2 else { return Extra::default() };
        // SAFETY: the device was listed by this instance.
        let extensions =
            unsafe { self.raw.enumerate_device_extension_properties(physical) }.unwrap_or_default();
        let has =
            |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str().is_ok_and(|n| n == name));
        let newer = |minor| properties.api_version >= vk::make_api_version(0, 1, minor, 0);
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
        let tells_driver = newer(2) || has(khr::driver_properties::NAME);
        let tells_third = newer(1) || has(khr::maintenance3::NAME);
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
        if tells_driver {
            all = all.push_next(&mut driver);
        }
        if tells_third {
            all = all.push_next(&mut third);
        }
        // SAFETY: the extension is enabled and the function exists (checked when the instance was made); the chained
        // structures live, and a driver skips those it does not know.
        unsafe { properties2.get_physical_device_properties2(physical, &mut all) };
        let words =
            format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str()));
        Extra {
            uuid: Some(id.device_uuid).filter(|u| *u != [0; vk::UUID_SIZE]),
            driver: Some(words.trim().to_owned()).filter(|w| !w.is_empty()),
            max_allocation: Some(third.max_memory_allocation_size).filter(|m| *m > 0),
            layered: driver.driver_id == vk::DriverId::MESA_DOZEN,
        }
    }
}

#[derive(Default)]
struct Extra {
    uuid: Option<[u8; vk::UUID_SIZE]>,
    driver: Option<String>,
    max_allocation: Option<u64>,
    layered: bool,
}

/// Having nothing to use is not the same as being broken.
fn no_instance(by: &str, what: &str, result: vk::Result) -> Fault {
    let text = format!("{by} cannot {what}: {}", name(result));
    match result {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER | vk::Result::ERROR_INITIALIZATION_FAILED => {
            fault(FaultCode::NoDevice, text)
        }
        _ => fault(FaultCode::Driver, text),
    }
}

/// What a device lacks that every device has to have.
fn shortcoming(limits: &vk::PhysicalDeviceLimits, family: Option<u32>) -> Option<String> {
    if family.is_none() {
        return Some("it cannot compute".to_owned());
    }
    let too_small = [
        ("maxComputeWorkGroupInvocations", limits.max_compute_work_group_invocations, TILE),
        ("maxComputeWorkGroupSize", limits.max_compute_work_group_size[0], TILE),
        ("maxComputeWorkGroupCount", limits.max_compute_work_group_count[0], 1),
        ("maxComputeWorkGroupCount", limits.max_compute_work_group_count[1], 1),
        ("maxPerStageDescriptorStorageBuffers", limits.max_per_stage_descriptor_storage_buffers, 4),
        ("maxBoundDescriptorSets", limits.max_bound_descriptor_sets, 1),
        ("maxPushConstantsSize", limits.max_push_constants_size, super::pipeline::PUSH_BYTES),
        ("maxStorageBufferRange", limits.max_storage_buffer_range, 1 << 20),
    ];
    let (name, has, needs) = too_small.into_iter().find(|(_, has, needs)| has < needs)?;
    Some(format!("{name} is {has}, {needs} is needed"))
}

fn named_limits(limits: &vk::PhysicalDeviceLimits, max_allocation: Option<u64>) -> Vec<(String, u64)> {
    let mut named = vec![
        ("maxStorageBufferRange", limits.max_storage_buffer_range.into()),
        ("maxComputeWorkGroupCount.x", limits.max_compute_work_group_count[0].into()),
        ("maxComputeWorkGroupCount.y", limits.max_compute_work_group_count[1].into()),
        ("maxComputeWorkGroupInvocations", limits.max_compute_work_group_invocations.into()),
        ("maxComputeSharedMemorySize", limits.max_compute_shared_memory_size.into()),
        ("maxPushConstantsSize", limits.max_push_constants_size.into()),
        ("minStorageBufferOffsetAlignment", limits.min_storage_buffer_offset_alignment),
        ("nonCoherentAtomSize", limits.non_coherent_atom_size),
        ("maxMemoryAllocationCount", limits.max_memory_allocation_count.into()),
    ];
    named.extend(max_allocation.map(|m| ("maxMemoryAllocationSize", m)));
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// For drivers that do not tell one: the same for the same hardware and name.
fn derived_uuid(properties: &vk::PhysicalDeviceProperties, name: &str) -> [u8; vk::UUID_SIZE] {
    let mut uuid = [0; vk::UUID_SIZE];
    uuid[..4].copy_from_slice(&properties.vendor_id.to_le_bytes());
    uuid[4..8].copy_from_slice(&properties.device_id.to_le_bytes());
    uuid[8..].copy_from_slice(&super::cache::fnv1a(name.as_bytes()).to_le_bytes());
    uuid
}

/// A driver's text, whatever it is.
fn text(raw: Result<&CStr, std::ffi::FromBytesUntilNulError>) -> String {
    raw.map(|s| s.to_string_lossy().trim().to_owned()).unwrap_or_default()
}
