use std::fmt;

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
    /// No backend: this worker was built without one, or found no device.
    NoBackend,
}

impl Exit {
    const ALL: [Self; 6] =
        [Self::Bye, Self::Usage, Self::EngineGone, Self::Protocol, Self::Version, Self::NoBackend];

    /// The exit code of the process.
    pub const fn code(self) -> u8 {
        match self {
            Self::Bye => 0,
            Self::Usage => 64,
            Self::EngineGone => 65,
            Self::Protocol => 66,
            Self::Version => 67,
            Self::NoBackend => 68,
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
            Self::Bye => "ended as asked",
            Self::Usage => "was started with arguments it does not know",
            Self::EngineGone => "lost its engine",
            Self::Protocol => "did not understand the engine",
            Self::Version => "speaks another version of the protocol",
            Self::NoBackend => "has no backend",
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
