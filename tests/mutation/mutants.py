"""The faults that some test must notice: each is one edit of one file, and the test programs that should see it."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    fault: str
    file: str
    old: str  # exactly once in the file
    new: str
    programs: tuple  # tried in this order
    also: tuple = ()  # further edits of the file: (old, new)

    @property
    def edits(self):
        return ((self.old, self.new), *self.also)


CACHE = ("cache_test", "sched_test")
WHOLE = ("hybrid_test", "golden_test")
KERNELS = ("kernels_test",)

MUTANTS = (
    Mutant(
        "wrong-group",
        "every layer reads the block table of group 0",
        "src/exec/attention_groups.cc",
        "batch.tables(group.cache_group)",
        "batch.tables(GroupId{0})",
        WHOLE,
    ),
    Mutant(
        "missing-touch",
        "a group takes blocks before the hits of the groups behind it are held",
        "src/cache/coordinator_slots.cc",
        "  if (!cache.admitted_) hold_hit(cache, request);  // all groups' hits, before any group takes (and evicts) a block\n"
        "  for (size_t g = 0; g < groups_.size(); ++g) {\n    GroupState& state = cache.groups_[g];\n",
        "  const bool fresh = !cache.admitted_;\n  if (fresh) hold_hit(cache, request);\n"
        "  for (size_t g = 0; g < groups_.size(); ++g) {\n    GroupState& state = cache.groups_[g];\n"
        "    if (fresh) pool_.hold(state.row);\n",
        CACHE,
        (("    pool_.hold(kept);\n", ""),),
    ),
    Mutant(
        "hits-not-held",
        "the blocks of a hit are used without a reference",
        "src/cache/coordinator_slots.cc",
        "    pool_.hold(kept);\n",
        "",
        CACHE,
    ),
    Mutant(
        "free-hits-not-counted",
        "free blocks of a hit are not counted as needed",
        "src/cache/coordinator_slots.cc",
        "  return std::ranges::count_if(blocks, [&](BlockId b) { return pool.is_free(b); });",
        "  return std::ranges::count_if(blocks, [&](BlockId b) { return pool.is_free(b) && b == kNullBlock; });",
        CACHE,
    ),
    Mutant(
        "window-off-by-one-freed",
        "a window group frees one token too many",
        "src/cache/spec.cc",
        "std::max<int64_t>(0, num_processed - r.window + 1 - r.extra_retained)",
        "std::max<int64_t>(0, num_processed - r.window + 2 - r.extra_retained)",
        CACHE,
    ),
    Mutant(
        "window-off-by-one-seen",
        "a query sees one key more than its window",
        "src/kernels/attention_plan.cc",
        "position + 1 - shape.window",
        "position - shape.window",
        ("kernels_test", *WHOLE),
    ),
    Mutant(
        "window-hit-too-short",
        "a window's hit is one block short",
        "src/cache/spec.cc",
        "ceil_div(window->window - 1, tokens_per_block(spec, context_parallel_size))",
        "(window->window - 1) / tokens_per_block(spec, context_parallel_size)",
        CACHE,
    ),
    Mutant(
        "double-drop",
        "a drafter's group drops a block again for the same length",
        "src/cache/coordinator.cc",
        "const bool drop = lookup.drops_last && !dropped[i];",
        "const bool drop = lookup.drops_last;",
        CACHE,
    ),
    Mutant(
        "missing-alignment",
        "a window's hit may end anywhere",
        "src/cache/hit_search.cc",
        "run == 0 && end * q.block_tokens % q.alignment_tokens != 0",
        "run == 0 && end * q.block_tokens < 0",
        CACHE,
    ),
    Mutant(
        "write-mask-too-narrow",
        "a window group publishes one block fewer than its hits need",
        "src/cache/write_mask.cc",
        "  return q.rule.contiguous_blocks + (q.drops_last_block ? 1 : 0);",
        "  return q.rule.contiguous_blocks - 1 + (q.drops_last_block ? 1 : 0);",
        CACHE,
    ),
    Mutant(
        "freed-in-flight",
        "window blocks are freed while a step in flight reads them",
        "src/cache/coordinator_slots.cc",
        "free_skipped(cache, std::max<int64_t>(0, computed - request.in_flight));",
        "free_skipped(cache, computed);",
        CACHE,
    ),
    Mutant(
        "void-blocks-stay-published",
        "what a preempted request published for a step that never ran stays findable",
        "src/cache/coordinator_slots.cc",
        "pool_.index().published_tokens(block) > valid_tokens) discard(block);",
        "pool_.index().published_tokens(block) > valid_tokens + 1000000) discard(block);",
        CACHE,
    ),
    Mutant(
        "whole-prompt-from-cache",
        "a hit may cover the last token, whose logits are needed",
        "src/sched/scheduler.cc",
        "cache_.find_hit(request.hashes, request.num_tokens() - 1)",
        "cache_.find_hit(request.hashes, request.num_tokens())",
        CACHE,
    ),
    Mutant(
        "salt-not-hashed",
        "requests with different salts share blocks",
        "src/cache/block_hash.cc",
        "if (start == 0 && !keys.cache_salt.empty()) f(",
        "if (false) f(",
        CACHE,
    ),
    Mutant(
        "adapter-equals-salt",
        "an adapter and a salt of the same bytes give the same hash",
        "src/cache/block_hash.cc",
        "  update_value(sha, key.domain);\n",
        "",
        CACHE,
    ),
    Mutant(
        "published-first",
        "published blocks are handed out before unpublished ones",
        "src/cache/block_pool.cc",
        "link_between(block, links_[static_cast<size_t>(root)].previous, root);",
        "link_between(block, root * 0, links_[0].next);",
        CACHE,
    ),
    Mutant(
        "evicted-still-found",
        "a block that is handed out again keeps its key",
        "src/cache/block_pool.cc",
        "      index_.forget(block);\n      --group_of(block).retained;",
        "      --group_of(block).retained;",
        CACHE,
    ),
    Mutant(
        "bodies-outlive-tails",
        "what a window has passed keeps the rank of what ends a request",
        "src/cache/coordinator_publish.cc",
        "pool_.demote(block);",
        "(void)block;",
        CACHE,
    ),
    Mutant(
        "hit-stays-demoted",
        "a block that was hit goes as early as one that nobody wanted",
        "src/cache/block_pool.cc",
        "    demoted_[slot(block)] = false;\n    if (refs_[slot(block)]++ > 0) continue;",
        "    if (refs_[slot(block)]++ > 0) continue;",
        CACHE,
    ),
    Mutant(
        "report-looks-at-one-block",
        "the report of a miss looks at the last block alone, not at all that a hit needs",
        "src/cache/hit_report.cc",
        "if (single || missing <= first_needed(group, length)) return {MissReason::kUnused};",
        "if (single || missing < length) return {MissReason::kUnused};",
        CACHE,
    ),
    Mutant(
        "read-past-width",
        "a table read past its width gives the neighbour's block",
        "src/cache/block_table.cc",
        "return column >= 0 && column < width_ ? BlockId{blocks[static_cast<size_t>(column)]} : kNullBlock;",
        "return BlockId{blocks.data()[column]};",
        CACHE,
    ),
    Mutant(
        "ring-by-pool",
        "a ring's row follows the pool of tokens, not the position",
        "src/cache/slot_mapping.cc",
        "block.value * capacity + p % capacity",
        "block.value * capacity + p / capacity % capacity",
        CACHE,
    ),
    Mutant(
        "ring-of-one-pool",
        "a ring has room for one pool alone, whatever is drafted",
        "src/cache/spec.cc",
        "return pooled * static_cast<int64_t>(std::bit_ceil(pools));",
        "return pools > 0 ? pooled : 0;",
        CACHE,
    ),
    Mutant(
        "compressed-first-token",
        "the first token of a state writes it, not the last",
        "src/cache/slot_mapping.cc",
        "(p + 1) % t != 0",
        "p % t != 0",
        CACHE,
    ),
    Mutant(
        "pages-not-scaled",
        "manager blocks are taken for kernel pages",
        "src/cache/kernel_blocks.cc",
        "*page++ = block * between + j;",
        "*page++ = block + j * between;",
        ("cache_test", *WHOLE),
    ),
    Mutant(
        "stale-columns-below-window",
        "columns below the window keep the ids of blocks that were given back",
        "src/cache/block_table.cc",
        "std::fill_n(target.begin(), unread, kNullBlock.value);",
        "(void)unread;",
        CACHE,
    ),
    Mutant(
        "resumed-last",
        "a preempted request waits behind those that came later",
        "src/sched/scheduler.cc",
        "    waiting_.push_front(&request);",
        "    waiting_.push_back(&request);",
        CACHE,
    ),
    Mutant(
        "removals-not-told",
        "followers of the events are not told what is no longer findable",
        "src/cache/coordinator_publish.cc",
        "void Coordinator::discard(BlockId block) {\n  tell_removed(block);\n",
        "void Coordinator::discard(BlockId block) {\n",
        CACHE,
    ),
    Mutant(
        "own-blocks-as-reuse",
        "what a preempted request finds again counts as reuse of a group's blocks",
        "src/cache/coordinator_slots.cc",
        "if (!request.resumed) count_reuse(g, kept);",
        "count_reuse(g, kept);",
        CACHE,
    ),
    Mutant(
        "starts-after-preemption",
        "a step that preempted starts new requests",
        "src/sched/scheduler.cc",
        "if (plan.preempted.empty()) schedule_waiting(plan, budget);",
        "schedule_waiting(plan, budget);",
        CACHE,
    ),
    Mutant(
        "partly-allocated",
        "a refusal leaves blocks with the request",
        "src/cache/coordinator_slots.cc",
        "    if (!fits()) return false;\n  }\n",
        "    if (!fits()) {\n      if (cache.admitted_ && pool_.free_count() > 0) take(1, 0, cache.groups_[0].row);\n"
        "      return false;\n    }\n  }\n",
        CACHE,
    ),
    Mutant(
        "rows-of-wrong-group",
        "layers without pages read the block table of group 0",
        "src/exec/forward.cc",
        "list_sequences(batch, batch.tables(cache.cache_group), sequences_);",
        "list_sequences(batch, batch.tables(GroupId{0 * cache.cache_group.value}), sequences_);",
        WHOLE,
    ),
    Mutant(
        "open-pool-not-read",
        "a token does not read the other tokens of its own pool",
        "src/kernels/pooled_index.cc",
        "    add(row, complete * shape_.pool, position + 1);\n  }",
        "    add(row, position, position + 1);\n  }",
        ("kernels_test", *WHOLE),
    ),
    Mutant(
        "index-score-nan-hidden",
        "an index score that is NaN counts as the lowest",
        "src/kernels/pooled_index.cc",
        "      if (std::isnan(pools_.back().score)) return;\n",
        "      if (std::isnan(pools_.back().score)) pools_.back().score = -std::numeric_limits<float>::infinity();\n",
        KERNELS,
    ),
    Mutant(
        "latent-rope-left-out",
        "scores of latent attention lack the dimensions with rope",
        "src/kernels/latent_attention.cc",
        "dot(query(head), key(i), shape_.row_dim(), dtype)",
        "dot(query(head), key(i), shape_.rank, dtype)",
        KERNELS,
    ),
    Mutant(
        "latent-value-of-wrong-columns",
        "the value is taken from the last columns of a row, those with rope among them",
        "src/kernels/latent_attention.cc",
        "rounded(p[i], dtype), key(i));",
        "rounded(p[i], dtype), key(i) + shape_.rope_dim);",
        KERNELS,
    ),
    Mutant(
        "latent-own-row-not-read",
        "a token of latent attention reads only those before it",
        "src/kernels/latent_attention.cc",
        "const int64_t position = sequence.first_position + index;",
        "const int64_t position = std::max<int64_t>(0, sequence.first_position + index - 1);",
        KERNELS,
    ),
    Mutant(
        "latent-chunks-not-rescaled",
        "what latent attention has summed keeps its scale when a chunk has a greater maximum",
        "src/kernels/latent_attention.cc",
        "out[i] = std::fma(chunk.out[i], b, out[i] * a);",
        "out[i] = std::fma(chunk.out[i], b, out[i]);",
        KERNELS,
    ),
    Mutant(
        "latent-nan-score-hidden",
        "a score of latent attention that is NaN is left out beside others that are -infinity",
        "src/kernels/latent_attention.cc",
        "if (bad) chunk_.maximum = 0;",
        "if (false && bad) chunk_.maximum = 0;",
        KERNELS,
    ),
)
