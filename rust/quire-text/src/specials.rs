//! Finds the tokens that are cut out of a text before anything else: control and user-defined tokens.
//!
//! Longer tokens go first over the whole text, and among equally long ones the leftmost, so that of overlapping
//! candidates the longest wins (the order of llama.cpp, which the fixtures of the real models follow).

use ahash::AHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

#[derive(Default)]
struct Trie {
    edges: AHashMap<(u32, u8), u32>,
    token: Vec<Option<u32>>,
}

impl Trie {
    fn insert(&mut self, text: &[u8], id: u32) {
        if self.token.is_empty() {
            self.token.push(None);
        }
        let mut node = 0;
        for &byte in text {
            let fresh = self.token.len() as u32;
            node = *self.edges.entry((node, byte)).or_insert(fresh);
            if node == fresh {
                self.token.push(None);
            }
        }
        self.token[node as usize].get_or_insert(id);
    }

    /// The longest token that starts `text`: (its length, its id).
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut node = 0;
        let mut best = None;
        for (i, &byte) in text.iter().enumerate() {
            match self.edges.get(&(node, byte)) {
                Some(&next) => node = next,
                None => break,
            }
            if let Some(id) = self.token[node as usize] {
                best = Some((i + 1, id));
            }
        }
        best
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

pub struct SpecialMatcher {
    trie: Trie,
    starts: [bool; 256],
}

impl SpecialMatcher {
    pub fn new<'a>(tokens: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut matcher = SpecialMatcher { trie: Trie::default(), starts: [false; 256] };
        for (text, id) in tokens {
            if let Some(&first) = text.first() {
                matcher.starts[first as usize] = true;
                matcher.trie.insert(text, id);
            }
        }
        matcher
    }

    pub fn partition<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        let bytes = text.as_bytes();
        let mut queue = BinaryHeap::new();
        for (start, &byte) in bytes.iter().enumerate() {
            if self.starts[byte as usize] {
                if let Some((len, id)) = self.trie.longest(&bytes[start..]) {
                    queue.push((len, Reverse(start), id));
                }
            }
        }

        // start -> (end, id) of the tokens taken so far; they do not overlap.
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        while let Some((len, Reverse(start), id)) = queue.pop() {
            if taken.range(..=start).next_back().is_some_and(|(_, &(end, _))| end > start) {
                continue;
            }
            let limit = taken.range(start..).next().map_or(bytes.len(), |(&next, _)| next);
            if start + len <= limit {
                taken.insert(start, (start + len, id));
            } else if let Some((shorter, id)) = self.trie.longest(&bytes[start..limit]) {
                queue.push((shorter, Reverse(start), id));
            }
        }

        let mut fragments = Vec::with_capacity(2 * taken.len() + 1);
        let mut at = 0;
        for (start, (end, id)) in taken {
            if at < start {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Token(id));
            at = end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(tokens: &[&'static str]) -> SpecialMatcher {
        SpecialMatcher::new(tokens.iter().enumerate().map(|(i, t)| (t.as_bytes(), i as u32)))
    }

    #[test]
    fn longest_wins_even_when_it_starts_later() {
        let m = matcher(&["abc", "bcde", "a"]);
        assert_eq!(
            m.partition("xabcdey"),
            [Fragment::Text("x"), Fragment::Token(2), Fragment::Token(1), Fragment::Text("y")]
        );
    }

    #[test]
    fn runs_take_the_longest_first() {
        let m = matcher(&["  ", "   "]);
        assert_eq!(m.partition("       "), [Fragment::Token(1), Fragment::Token(1), Fragment::Text(" ")]);
        assert_eq!(m.partition("     "), [Fragment::Token(1), Fragment::Token(0)]);
    }

    #[test]
    fn agrees_with_cutting_token_by_token() {
        // The definition: tokens by falling length, each cut out of every remaining text from the left.
        let tokens = ["aab", "ab", "ba", "abab", "b"];
        let m = matcher(&tokens);
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&i| Reverse(tokens[i].len()));
        for n in 0..1u32 << 11 {
            let text: String = (0..11).map(|i| if n >> i & 1 == 1 { 'a' } else { 'b' }).collect();
            let mut want = vec![Fragment::Text(&text)];
            for &i in order.iter().filter(|&&i| tokens[i].len() != 2) {
                want = cut(want, tokens[i], i as u32);
            }
            let got: Vec<_> = matcher(&["aab", "", "", "abab", "b"]).partition(&text);
            assert_eq!(got, want, "{text}");
            assert_eq!(
                m.partition(&text)
                    .iter()
                    .map(|f| match f {
                        Fragment::Text(t) => t.len(),
                        Fragment::Token(id) => tokens[*id as usize].len(),
                    })
                    .sum::<usize>(),
                text.len()
            );
        }
    }

    fn cut<'a>(fragments: Vec<Fragment<'a>>, token: &str, id: u32) -> Vec<Fragment<'a>> {
        let mut out = Vec::new();
        for fragment in fragments {
            match fragment {
                Fragment::Text(mut text) => {
                    while let Some(at) = text.find(token) {
                        if at > 0 {
                            out.push(Fragment::Text(&text[..at]));
                        }
                        out.push(Fragment::Token(id));
                        text = &text[at + token.len()..];
                    }
                    if !text.is_empty() {
                        out.push(Fragment::Text(text));
                    }
                }
                token => out.push(token),
            }
        }
        out
    }
}
