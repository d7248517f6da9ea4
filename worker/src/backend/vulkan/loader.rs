//! The way to Vulkan's first function: through the system's loader, or past it straight into a driver.
//!
//! Libraries are opened at run time and stay open until the process ends: drivers start threads, and code that is
//! unmapped beneath a thread is a crash.
#![allow(unsafe_code, reason = "opens libraries and calls functions in them by name")]

use std::ffi::{CStr, c_char};
use std::path::Path;

use ash::vk;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use twinband_protocol::manifest::Manifest;
use twinband_protocol::{Fault, FaultCode};

use super::fault::{fault, name};

/// The interface between loader and driver that is spoken here, see Vulkan's LoaderDriverInterface document.
const INTERFACE_VERSION: u32 = 5;

type Negotiate = unsafe extern "system" fn(*mut u32) -> vk::Result;

/// What a Vulkan library offers before there is an instance.
pub(super) struct Entry {
    pub raw: ash::Entry,
    /// For reports: the library and, for the loader, its version.
    pub described: String,
    /// The manifest, if this is a driver.
    pub manifest: Option<String>,
}

/// The system's loader.
pub(super) fn system() -> Result<Entry, Fault> {
    let library = open(Path::new("libvulkan.so.1")).or_else(|first| {
        // The name without a version comes with development packages.
        open(Path::new("libvulkan.so")).map_err(|_| first)
    });
    let library = library.map_err(|e| fault(FaultCode::NoDevice, format!("no Vulkan loader: {e}")))?;
    // SAFETY: the type is that of the function of this name in every Vulkan library.
    let get = unsafe { symbol::<vk::PFN_vkGetInstanceProcAddr>(library, c"vkGetInstanceProcAddr") };
    let get = get.ok_or_else(|| fault(FaultCode::Driver, "libvulkan.so.1 has no vkGetInstanceProcAddr"))?;
    let raw = entry(get).map_err(|e| fault(FaultCode::Driver, format!("libvulkan.so.1 {e}")))?;
    // SAFETY: ash calls the function only if the library has it.
    let version =
        unsafe { raw.try_enumerate_instance_version() }.ok().flatten().unwrap_or(vk::API_VERSION_1_0);
    let described = format!("libvulkan.so.1, Vulkan {}", version_text(version));
    Ok(Entry { raw, described, manifest: None })
}

/// The driver of a manifest.
pub(super) fn direct(manifest: &Manifest) -> Result<Entry, Fault> {
    let path = manifest.path.display();
    let trouble =
        |text: String| fault(FaultCode::Driver, format!("the Vulkan driver manifest {path}: {text}"));
    let file = manifest.library.as_ref().map_err(|e| trouble(e.clone()))?;
    let library = open(file).map_err(trouble)?;
    // SAFETY: the type is that of the function of this name in the interface between loader and driver.
    let negotiate = unsafe { symbol::<Negotiate>(library, c"vk_icdNegotiateLoaderICDInterfaceVersion") };
    if let Some(negotiate) = negotiate {
        let mut version = INTERFACE_VERSION;
        // SAFETY: writes a version into the variable.
        let result = unsafe { negotiate(&raw mut version) };
        if result != vk::Result::SUCCESS {
            return Err(trouble(format!("the driver speaks no common interface: {}", name(result))));
        }
    }
    let get = [c"vk_icdGetInstanceProcAddr", c"vkGetInstanceProcAddr"].into_iter().find_map(|name| {
        // SAFETY: both have this type; the second is how the oldest drivers call it.
        unsafe { symbol::<vk::PFN_vkGetInstanceProcAddr>(library, name) }
    });
    let get = get.ok_or_else(|| trouble(format!("{} is no Vulkan driver", file.display())))?;
    let raw = entry(get).map_err(|e| trouble(format!("{} {e}", file.display())))?;
    Ok(Entry { raw, described: file.display().to_string(), manifest: Some(path.to_string()) })
}

/// Opens a library for ever.
fn open(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: code of the library runs now. What it does cannot be known; that is why it runs in a process of its own.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.map(|l| &*Box::leak(Box::new(l))).map_err(|e| e.to_string())
}

/// A function of a library.
///
/// # Safety
/// `T` is a function pointer of the type of that function.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &CStr) -> Option<T> {
    // SAFETY: as promised by the caller; a null pointer is refused below before it is taken for a function.
    let found = unsafe { library.get::<*const c_char>(name.to_bytes_with_nul()) }.ok()?;
    if found.is_null() {
        return None;
    }
    // SAFETY: the symbol exists, and its type is the caller's promise.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }.ok().map(|f| *f)
}

/// Checks that the functions that everything begins with exist: ash would put a panic in the place of a missing one.
fn entry(get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr) -> Result<ash::Entry, String> {
    for name in [c"vkCreateInstance", c"vkEnumerateInstanceExtensionProperties"] {
        // SAFETY: these names may be asked for without an instance.
        if unsafe { get_instance_proc_addr(vk::Instance::null(), name.as_ptr()) }.is_none() {
            return Err(format!("has no {}", name.to_string_lossy()));
        }
    }
    // SAFETY: the function comes from a library that is never closed.
    Ok(unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) })
}

/// A version number in words.
pub(super) fn version_text(v: u32) -> String {
    format!("{}.{}.{}", vk::api_version_major(v), vk::api_version_minor(v), vk::api_version_patch(v))
}
