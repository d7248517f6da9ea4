//! Switches for tests, in the environment variable `TWINBAND_VULKAN_TEST`: words with commas between them.
//!
//! | word | effect |
//! |---|---|
//! | `nan` | results are filled with NaN before every job, so that a row nobody wrote shows |
//! | `staged` | activations take the way of a device whose memory the CPU cannot reach |
//! | `chunk=N` | no storage buffer is larger than N bytes |
//! | `groups=N` | no dispatch has more than N workgroups in a dimension |
//! | `submit=N` | no submit reads more than N bytes of weights |

pub(super) const VARIABLE: &str = "TWINBAND_VULKAN_TEST";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub nan: bool,
    pub staged: bool,
    pub chunk: Option<u64>,
    pub groups: Option<u32>,
    pub submit: Option<u64>,
}

impl Options {
    pub fn from_env() -> Self {
        std::env::var(VARIABLE).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let mut options = Self::default();
        for word in text.split(',') {
            match word.split_once('=').unwrap_or((word, "")) {
                ("nan", _) => options.nan = true,
                ("staged", _) => options.staged = true,
                ("chunk", n) => options.chunk = n.parse().ok(),
                ("groups", n) => options.groups = n.parse().ok().filter(|n| *n > 0),
                ("submit", n) => options.submit = n.parse().ok(),
                _ => {}
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_nonsense_is_ignored() {
        assert_eq!(Options::parse(""), Options::default());
        let want = Options { nan: true, staged: true, chunk: Some(4096), groups: Some(3), submit: Some(1) };
        assert_eq!(Options::parse("nan,chunk=4096,groups=3,submit=1,staged,what,=,x=y"), want);
        assert_eq!(Options::parse("groups=0,chunk=-1"), Options::default());
    }
}
