//! Stop strings: found over any cut of the text into pieces, never shown, and nothing before them is lost.

/// Passes text on until one of its stop strings is complete.
///
/// The stop string that is complete first ends the text, the longest of those complete at the same character; so
/// the result depends on the text alone and not on the tokens it came in. What may still become a stop string is held
/// back, and no more than that.
#[derive(Debug, Clone, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    found: Option<String>,
}

impl StopFilter {
    /// Empty strings among `stops` are no stop strings.
    pub fn new(stops: &[String]) -> Self {
        StopFilter {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: String::new(),
            found: None,
        }
    }

    /// Takes the next piece of text and appends to `out` what can be shown now. True: a stop string is complete, and
    /// from now on nothing is shown.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.found.is_some() {
            return true;
        }
        let known = self.held.len();
        self.held.push_str(text);
        if let Some((start, end)) = self.first_complete(known) {
            out.push_str(self.held.get(..start).unwrap_or_default());
            self.found = self.held.get(start..end).map(str::to_owned);
            self.held.clear();
            return true;
        }
        let shown = self.held.len() - self.longest_beginning();
        out.extend(self.held.drain(..shown));
        false
    }

    /// The end of the text: what was held back is shown after all, unless a stop string was found.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Where the first complete stop string lies; the first `known` bytes are known to hold none.
    fn first_complete(&self, known: usize) -> Option<(usize, usize)> {
        let complete = self.stops.iter().filter_map(|stop| {
            let mut from = (known + 1).saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from += 1;
            }
            let start = from + self.held.get(from..)?.find(stop.as_str())?;
            Some((start, start + stop.len()))
        });
        complete.min_by_key(|&(start, end)| (end, start))
    }

    /// Length of the longest end of the held text that begins a stop string.
    fn longest_beginning(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let tail = self.held.len().saturating_sub(longest.saturating_sub(1));
        (tail..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.held.get(at..).is_some_and(|end| self.stops.iter().any(|s| s.starts_with(end))))
            .map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(list: &[&str]) -> Vec<String> {
        list.iter().map(|&s| s.to_owned()).collect()
    }

    /// The text shown, and the stop string found.
    fn run(list: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut filter = StopFilter::new(&stops(list));
        let mut out = String::new();
        for piece in pieces {
            if filter.push(piece, &mut out) {
                break;
            }
        }
        filter.finish(&mut out);
        (out, filter.found().map(str::to_owned))
    }

    #[test]
    fn a_stop_string_over_many_pieces_neither_leaks_nor_loses() {
        for pieces in
            [&["ABCDEFGHIJKL"][..], &["ABC", "DEFGHIJ", "KL"], &["ABCD", "EFGH", "IJ"], &["ABCDEFG", "HIJ"]]
        {
            assert_eq!(run(&["DEFGHIJ"], pieces), ("ABC".into(), Some("DEFGHIJ".into())), "{pieces:?}");
        }
        assert_eq!(run(&["DEFGHIJ"], &["ABCDEF", "GHI"]), ("ABCDEFGHI".into(), None));
        assert_eq!(run(&["aab"], &["aa", "ab", "x"]), ("a".into(), Some("aab".into())));
        assert_eq!(run(&[""], &["a", "b"]), ("ab".into(), None));
        assert_eq!(run(&["é\n"], &["caf", "é", "\n", "x"]), ("caf".into(), Some("é\n".into())));
    }

    #[test]
    fn the_first_to_be_complete_wins_however_the_text_is_cut() {
        for pieces in [&["ABCDEFGH"][..], &["A", "B", "C", "D", "E", "F", "G", "H"]] {
            assert_eq!(run(&["ABCDEFG", "CDE"], pieces), ("AB".into(), Some("CDE".into())));
            assert_eq!(run(&["DE", "BCDE"], pieces), ("A".into(), Some("BCDE".into())));
        }
    }

    #[test]
    fn only_a_true_beginning_is_held() {
        let mut filter = StopFilter::new(&stops(&["</s>", "STOP"]));
        let mut out = String::new();
        for (piece, shown) in
            [("a <", "a "), ("b S", "a <b "), ("TO", "a <b "), ("RE", "a <b STORE"), ("é", "a <b STOREé")]
        {
            assert!(!filter.push(piece, &mut out));
            assert_eq!(out, shown);
        }
    }

    #[test]
    fn nothing_is_shown_after_the_stop() {
        let mut filter = StopFilter::new(&stops(&["x"]));
        let mut out = String::new();
        assert!(filter.push("axb", &mut out) && filter.push("c", &mut out));
        filter.finish(&mut out);
        assert_eq!(out, "a");
    }

    proptest! {
        #[test]
        fn the_cut_does_not_matter(
            text in "[abé]{0,24}",
            list in proptest::collection::vec("[abé]{1,4}", 0..4),
            cuts in proptest::collection::vec(0usize..25, 0..6),
        ) {
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            // By definition: the shortest prefix of the text that ends with a stop string, without the longest such.
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let wanted = ends
                .filter_map(|end| {
                    let upto = &text[..end];
                    let stop = list.iter().filter(|s| upto.ends_with(**s)).max_by_key(|s| s.len())?;
                    Some((upto[..end - stop.len()].to_owned(), Some((*stop).to_owned())))
                })
                .next()
                .unwrap_or((text.clone(), None));
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| text.is_char_boundary(c.min(text.len()))).map(|c| c.min(text.len())).collect();
            cuts.push(0);
            cuts.push(text.len());
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&list, &pieces), wanted);
        }
    }
}
