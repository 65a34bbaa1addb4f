//! The merge loop of BPE: the pair of neighbours with the best priority is joined, the leftmost first among equals,
//! until no pair can be joined. Byte-level BPE (priority = rank of the merge) and SentencePiece-style BPE (priority =
//! rank of the joined token's score) differ only in the rule.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the text that is one token so far. `id` is NO_ID for text that is no token of its own.
#[derive(Clone, Copy)]
pub struct Symbol {
    pub start: u32,
    pub len: u32,
    pub id: u32,
}

pub const NO_ID: u32 = u32::MAX;

pub trait MergeRule {
    /// (priority, id of the joined token) if the neighbours `left` and `right` may be joined; lower goes first.
    fn joined(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)>;
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    symbol: Symbol,
    prev: u32,
    next: u32,
}

// Ordered by priority, then by position; `len` tells whether the pair is still the one that was seen.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// Reusable scratch memory of the merge loop.
#[derive(Default)]
pub struct Merger {
    nodes: Vec<Node>,
    queue: BinaryHeap<Candidate>,
}

impl Merger {
    /// Joins `symbols`, which must be neighbours in text order, and hands the results to `emit` in order.
    pub fn run<R: MergeRule>(&mut self, rule: &R, symbols: impl Iterator<Item = Symbol>, mut emit: impl FnMut(Symbol)) {
        self.nodes.clear();
        self.queue.clear();
        for symbol in symbols {
            let at = self.nodes.len() as u32;
            self.nodes.push(Node { symbol, prev: at.wrapping_sub(1), next: at + 1 });
        }
        let Some(last) = self.nodes.last_mut() else { return };
        last.next = NONE;

        for left in 0..self.nodes.len() as u32 {
            self.consider(rule, left);
        }
        while let Some(Reverse((_, left, right, len, id))) = self.queue.pop() {
            let (l, r) = (self.nodes[left as usize], self.nodes[right as usize]);
            if l.symbol.len == 0 || r.symbol.len == 0 || l.symbol.len + r.symbol.len != len {
                continue;
            }
            let node = &mut self.nodes[left as usize];
            node.symbol.len = len;
            node.symbol.id = id;
            node.next = r.next;
            self.nodes[right as usize].symbol.len = 0;
            if r.next != NONE {
                self.nodes[r.next as usize].prev = left;
            }
            if l.prev != NONE {
                self.consider(rule, l.prev);
            }
            self.consider(rule, left);
        }

        let mut at = 0;
        while at != NONE {
            let node = self.nodes[at as usize];
            emit(node.symbol);
            at = node.next;
        }
    }

    fn consider<R: MergeRule>(&mut self, rule: &R, left: u32) {
        let right = self.nodes[left as usize].next;
        if right == NONE {
            return;
        }
        let (l, r) = (self.nodes[left as usize].symbol, self.nodes[right as usize].symbol);
        if let Some((priority, id)) = rule.joined(l, r) {
            self.queue.push(Reverse((priority, left, right, l.len + r.len, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Ids are letters; "ab" joins first, then "bc", then "aa".
    struct Rule;
    impl MergeRule for Rule {
        fn joined(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
            match (left.id as u8, right.id as u8) {
                (b'a', b'b') => Some((0, u32::from(b'X'))),
                (b'b', b'c') => Some((1, u32::from(b'Y'))),
                (b'a', b'a') => Some((2, u32::from(b'Z'))),
                _ => None,
            }
        }
    }

    fn merged(text: &str) -> String {
        let symbols = text.bytes().enumerate().map(|(i, b)| Symbol { start: i as u32, len: 1, id: u32::from(b) });
        let mut out = String::new();
        Merger::default().run(&Rule, symbols, |s| out.push(s.id as u8 as char));
        out
    }

    #[test]
    fn best_priority_first_then_leftmost() {
        assert_eq!(merged(""), "");
        assert_eq!(merged("abc"), "Xc");
        assert_eq!(merged("bbc"), "bY");
        assert_eq!(merged("aaa"), "Za");
        assert_eq!(merged("aaab"), "ZX");
    }
}
