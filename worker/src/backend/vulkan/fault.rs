//! What a driver says, as faults.

use ash::vk;
use twinband_protocol::{Fault, FaultCode};

/// A fault in words.
pub(super) fn fault(code: FaultCode, text: impl Into<String>) -> Fault {
    Fault { code, text: text.into() }
}

/// The fault of a call that failed while trying `what`.
pub(super) fn from_result(what: &str, result: vk::Result) -> Fault {
    let code = match result {
        vk::Result::ERROR_DEVICE_LOST => FaultCode::DeviceLost,
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
        | vk::Result::ERROR_OUT_OF_HOST_MEMORY
        | vk::Result::ERROR_TOO_MANY_OBJECTS
        | vk::Result::ERROR_OUT_OF_POOL_MEMORY
        | vk::Result::ERROR_FRAGMENTED_POOL => FaultCode::Memory,
        _ => FaultCode::Driver,
    };
    fault(code, format!("the driver cannot {what}: {}", name(result)))
}

/// The name of a result, as the Vulkan documentation spells it.
pub(super) fn name(result: vk::Result) -> String {
    let known = match result {
        vk::Result::NOT_READY => "VK_NOT_READY",
        vk::Result::TIMEOUT => "VK_TIMEOUT",
        vk::Result::INCOMPLETE => "VK_INCOMPLETE",
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => "VK_ERROR_OUT_OF_HOST_MEMORY",
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => "VK_ERROR_OUT_OF_DEVICE_MEMORY",
        vk::Result::ERROR_INITIALIZATION_FAILED => "VK_ERROR_INITIALIZATION_FAILED",
        vk::Result::ERROR_DEVICE_LOST => "VK_ERROR_DEVICE_LOST",
        vk::Result::ERROR_MEMORY_MAP_FAILED => "VK_ERROR_MEMORY_MAP_FAILED",
        vk::Result::ERROR_LAYER_NOT_PRESENT => "VK_ERROR_LAYER_NOT_PRESENT",
        vk::Result::ERROR_EXTENSION_NOT_PRESENT => "VK_ERROR_EXTENSION_NOT_PRESENT",
        vk::Result::ERROR_FEATURE_NOT_PRESENT => "VK_ERROR_FEATURE_NOT_PRESENT",
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => "VK_ERROR_INCOMPATIBLE_DRIVER",
        vk::Result::ERROR_TOO_MANY_OBJECTS => "VK_ERROR_TOO_MANY_OBJECTS",
        vk::Result::ERROR_FRAGMENTED_POOL => "VK_ERROR_FRAGMENTED_POOL",
        vk::Result::ERROR_OUT_OF_POOL_MEMORY => "VK_ERROR_OUT_OF_POOL_MEMORY",
        vk::Result::ERROR_UNKNOWN => "VK_ERROR_UNKNOWN",
        other => return format!("result {}", other.as_raw()),
    };
    format!("{known} ({})", result.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_the_faults_the_engine_acts_on() {
        for (result, code) in [
            (vk::Result::ERROR_DEVICE_LOST, FaultCode::DeviceLost),
            (vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, FaultCode::Memory),
            (vk::Result::ERROR_INITIALIZATION_FAILED, FaultCode::Driver),
            (vk::Result::from_raw(-12345), FaultCode::Driver),
        ] {
            assert_eq!(from_result("x", result).code, code);
        }
        assert_eq!(
            from_result("submit work", vk::Result::ERROR_DEVICE_LOST).text,
            "the driver cannot submit work: VK_ERROR_DEVICE_LOST (-4)"
        );
        assert!(from_result("x", vk::Result::from_raw(-12345)).text.ends_with("result -12345"));
    }
}
