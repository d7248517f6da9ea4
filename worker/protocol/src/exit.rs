use std::fmt;

use crate::FaultCode;

/// Why the worker ended, as its exit code. Numbers from 64 on keep clear of shells and of the Rust runtime (101).
///
/// A code is a hint for the report, never a proof: a driver can end the process with any status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The engine said goodbye.
    Bye,
    /// Started by hand, or with arguments it does not know.
    Usage,
    /// The engine closed the pipe without a goodbye.
    EngineGone,
    /// The engine sent something that is no frame, or no message that is allowed at that point.
    Protocol,
    /// The engine speaks another version.
    Version,
    /// It could not limit itself, and did not want to load a driver without limits.
    Limits,
    /// It reported a fault of this kind.
    Fault(FaultCode),
}

impl Exit {
    const ALL: [Self; 14] = [
        Self::Bye,
        Self::Usage,
        Self::EngineGone,
        Self::Protocol,
        Self::Version,
        Self::Limits,
        Self::Fault(FaultCode::NoDevice),
        Self::Fault(FaultCode::NoFitDevice),
        Self::Fault(FaultCode::Driver),
        Self::Fault(FaultCode::Memory),
        Self::Fault(FaultCode::Format),
        Self::Fault(FaultCode::DeviceLost),
        Self::Fault(FaultCode::Input),
        Self::Fault(FaultCode::Internal),
    ];

    /// The exit code of the process.
    pub const fn code(self) -> u8 {
        match self {
            Self::Bye => 0,
            Self::Usage => 64,
            Self::EngineGone => 65,
            Self::Protocol => 66,
            Self::Version => 67,
            Self::Limits => 68,
            Self::Fault(FaultCode::NoDevice) => 70,
            Self::Fault(FaultCode::NoFitDevice) => 71,
            Self::Fault(FaultCode::Driver) => 72,
            Self::Fault(FaultCode::Memory) => 73,
            Self::Fault(FaultCode::Format) => 74,
            Self::Fault(FaultCode::DeviceLost) => 75,
            Self::Fault(FaultCode::Input) => 76,
            Self::Fault(FaultCode::Internal) => 77,
        }
    }

    /// The reason behind an exit code, if it is one of ours.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bye => "ended as if it had been asked to",
            Self::Usage => "was started with arguments it does not know",
            Self::EngineGone => "lost its engine",
            Self::Protocol => "did not understand the engine",
            Self::Version => "speaks another version of the protocol",
            Self::Limits => "could not limit itself",
            Self::Fault(FaultCode::NoDevice) => "found no device",
            Self::Fault(FaultCode::NoFitDevice) => "found no device that may be used",
            Self::Fault(FaultCode::Driver) => "met an error in the driver",
            Self::Fault(FaultCode::Memory) => "did not get the memory it needs",
            Self::Fault(FaultCode::Format) => "cannot compute this format",
            Self::Fault(FaultCode::DeviceLost) => "lost the device",
            Self::Fault(FaultCode::Input) => "found its input damaged",
            Self::Fault(FaultCode::Internal) => "failed by an error of its own",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_come_back() {
        for exit in Exit::ALL {
            assert_eq!(Exit::from_code(exit.code().into()), Some(exit));
        }
        for foreign in [1, 101, 134, 137, -1, 256] {
            assert_eq!(Exit::from_code(foreign), None);
        }
    }
}
