//! Templates for models whose file has none, and for `--template NAME`.

/// A built-in template.
pub(super) struct Builtin {
    pub name: &'static str,
    /// Tokens that a vocabulary made for this template has.
    pub markers: &'static [&'static str],
    /// Why it is chosen where they are there.
    pub because: &'static str,
    pub source: &'static str,
}

/// Tried in this order; the last one fits every vocabulary.
pub(super) const ALL: &[Builtin] = &[
    Builtin {
        name: "chatml",
        markers: &["<|im_start|>", "<|im_end|>"],
        because: "its vocabulary has <|im_start|>",
        source: "\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}",
    },
    Builtin {
        name: "llama3",
        markers: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        because: "its vocabulary has <|start_header_id|>",
        source: "\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}",
    },
    Builtin {
        name: "gemma",
        markers: &["<start_of_turn>", "<end_of_turn>"],
        because: "its vocabulary has <start_of_turn>",
        // These models know no system role: its text begins the user's first turn.
        source: "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set ns.system = message.content | trim + '\\n\\n' -%}
    {%- else -%}
        {%- set role = 'model' if message.role == 'assistant' else message.role -%}
        {{- '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' -}}
        {%- set ns.system = '' -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' + ns.system -}}
{%- endif -%}",
    },
    Builtin {
        name: "plain",
        markers: &[],
        because: "its vocabulary has no markers of a known one",
        source: "\
{%- for message in messages -%}
    {{- message.role | capitalize + ': ' + message.content | trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant:' -}}
{%- endif -%}",
    },
];

/// Name and text of a template.
pub(super) fn by_name(name: &str) -> Option<(&'static str, &'static str)> {
    ALL.iter().find(|b| b.name == name).map(|b| (b.name, b.source))
}

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|b| b.name)
}
