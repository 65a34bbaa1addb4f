#include "model/architectures/understood.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace quire::model {
namespace {

using namespace std::string_view_literals;

constexpr auto kHarmless = std::to_array({
    // What the file is, and who wrote it.
    "_name_or_path"sv,
    "architectures"sv,
    "auto_map"sv,
    "dtype"sv,
    "is_llama_config"sv,
    "model_type"sv,
    "name_or_path"sv,
    "tokenizer_class"sv,
    "torch_dtype"sv,
    "transformers.js_config"sv,
    "transformers_version"sv,
    "unsloth_fixed"sv,
    "unsloth_version"sv,
    // Read elsewhere: by whoever opens the checkpoint, by the tokenizer, by generation.
    "bos_token_id"sv,
    "decoder_start_token_id"sv,
    "eos_token_id"sv,
    "pad_token_id"sv,
    "quantization_config"sv,
    "sep_token_id"sv,
    "unk_token_id"sv,
    // Training.
    "attention_dropout"sv,
    "attention_probs_dropout_prob"sv,
    "attn_pdrop"sv,
    "aux_loss_alpha"sv,
    "classifier_dropout"sv,
    "embd_pdrop"sv,
    "embedding_dropout"sv,
    "gradient_checkpointing"sv,
    "hidden_dropout"sv,
    "hidden_dropout_prob"sv,
    "initializer_factor"sv,
    "initializer_range"sv,
    "pretraining_tp"sv,
    "resid_pdrop"sv,
    "residual_dropout"sv,
    "router_aux_loss_coef"sv,
    "router_jitter_noise"sv,
    "seq_aux"sv,
    "ep_size"sv,
    // What a library does with the model, not what it computes.
    "_attn_implementation"sv,
    "_attn_implementation_autoset"sv,
    "attn_implementation"sv,
    "cache_implementation"sv,
    "chunk_size_feed_forward"sv,
    "id2label"sv,
    "is_decoder"sv,
    "label2id"sv,
    "mamba_ssm_dtype"sv,
    "output_attentions"sv,
    "output_hidden_states"sv,
    "output_router_logits"sv,
    "problem_type"sv,
    "return_dict"sv,
    "torchscript"sv,
    "use_cache"sv,
    "use_flash_attn"sv,
    // Of heads, where attention is latent and has sizes of its own; others read them.
    "head_dim"sv,
    "num_key_value_heads"sv,
    // Said once more in another place, or of another form of the same model, which references pass over.
    "_sliding_window_pattern"sv,
    "experts_per_token"sv,
    "first_k_dense_replace"sv,
    "full_attention_interval"sv,
    "full_attn_mod"sv,
    "index_share_for_mtp_iteration"sv,
    "initial_context_length"sv,
    "interpolate_factor"sv,
    "max_window_layers"sv,
    "mtp_num_hidden_layers"sv,
    "mtp_use_dedicated_embeddings"sv,
    "original_max_position_embeddings"sv,
    "partial_rotary_factor"sv,
    "qk_head_dim"sv,
    "rope_local_base_freq"sv,
    "rope_theta"sv,
    "sliding_window_pattern"sv,
    "sliding_window_size"sv,
});

constexpr auto kHarmlessGguf = std::to_array({
    "attention.head_count_kv"sv,       // of heads, where attention is latent
    "attention.key_length"sv,          //
    "attention.value_length"sv,        //
    "attention.layer_norm_epsilon"sv,  // beside that of RMSNorm
    "pooling_type"sv,                  // for embeddings
    "rope.dimension_sections"sv,       // how axes of images share the dimensions: all one for text
    "rope.scaling.finetuned"sv,        // a note
    "rope.scaling.yarn_beta_fast"sv,   // of another type
    "rope.scaling.yarn_beta_slow"sv,   //
    "tensor_data_layout"sv,
});

template <class Keys, class Harmless>
Result<void> require(const Keys& keys, const Harmless& harmless) {
  for (const std::string& key : keys)
    if (std::ranges::find(harmless, key) == harmless.end())
      return fail(ErrorKind::kUnsupported,
                  fmt::format("configuration key {} is not understood, and might change what the model answers", key),
                  key);
  return {};
}

}  // namespace

Result<void> finish(const HuggingFaceConfig& config, ModelSpec& spec) {
  auto ahead = config.integer_or("num_nextn_predict_layers", 0, kMaxLayers, 0);
  if (!ahead) return std::unexpected(ahead.error());
  spec.unread_layers = *ahead;
  return require(config.not_asked_for(), kHarmless);
}

Result<void> require_understood(const GgufConfig& config) { return require(config.not_asked_for(), kHarmlessGguf); }

}  // namespace quire::model
