#!/usr/bin/env python3
"""Writes tests/golden/text/jinja.json: small templates and what Jinja, set up as transformers does it, makes of them.

usage: jinja_cases.py OUT     (needs: pip install jinja2==3.1.6)
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 9, 12, 34, 56)

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "  Hé <b>&amp;</b> 'q' \"d\" \\ / 漢 😀\n\tend  "},
    {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nfine", "tool_calls": [
        {"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None, True, "é"], "z": {}}}}]},
    {"role": "user", "content": ""},
]
OPTIONS = {
    "tools": [{"type": "function", "function": {"name": "calc", "description": "a & b < c > 'd'", "parameters": {
        "type": "object", "properties": {"e": {"type": "number", "default": 1e-07}, "n": {"type": "integer", "default": 10}},
        "required": ["e"], "empty": [], "none": None, "no": False}}}],
    "add_generation_prompt": True, "flag": False, "number": 3, "ratio": 2.0, "big": 1e22, "items": ["b", "a", "c"],
    "map": {"b": 1, "a": 2},
}

TEMPLATES = [
    # white space
    "{% if true %}\nx\n{% endif %}\ny\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "a {%- if true -%}  b  {%- endif -%} c",
    "  {{- ' x ' -}}  y",
    "a\n  {#- comment -#}  \nb",
    "{% for m in messages %}\n{{ m.role }}\n{% endfor %}\n",
    "x\n\n", "x\n", "\n x",
    "{%+ if true %}  a{% endif %}",
    # generation blocks
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "a {%- generation -%} b {%- endgeneration %} c",
    # loops
    "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }},{% endfor %}",
    "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}{{ m.role }},{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}",
    "{% for m in messages[1:] if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }} {% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in map %}{{ k }}{% endfor %}",
    "{% for k, v in map | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.n }} {{ ns.l | join('-') }}",
    # values
    "{{ true }} {{ none }} {{ 1 }} {{ 1.0 }} {{ 1.5 }} {{ ratio }} {{ number / 2 }} {{ number // 2 }} {{ 7 % 4 }} {{ 2 ** 5 }}",
    "{{ messages[0] }}", "{{ items }}", "{{ map }}", "{{ undefined_thing }}|{{ flag }}",
    "{{ 'a' ~ 1 ~ none ~ true }}", "{{ 'ab' * 3 }}", "{{ 'x' in 'xyz' }} {{ 'role' in messages[0] }} {{ 4 in [1, 2] }}",
    "{{ bos_token + messages[0]['content'] + eos_token }}",
    "{{ (1, 2)[1] }} {{ [1, 2, 3][-1] }} {{ 'hello'[1:3] }} {{ 'hello'[-2:] }}",
    "{{ 1 if flag else 2 }} {{ 'x' if flag }}|{{ not flag }} {{ flag is false }} {{ number == 3 and not flag or false }}",
    # tests
    "{{ x is defined }} {{ tools is defined }} {{ documents is defined }} {{ documents is none }} {{ messages[0].nothing is defined }}",
    "{{ messages is iterable }} {{ messages is string }} {{ 'a' is string }} {{ map is mapping }} {{ number is number }} {{ messages is sequence }} {{ map is sequence }}",
    "{{ 'a' is sequence }} {{ 1 is sequence }} {{ none is sequence }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ 'a' is mapping }}",
    "{{ number is odd }} {{ 4 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 'a' is in ['a'] }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }}",
    # methods of strings
    "{{ messages[1].content.strip() }}|{{ messages[1].content.lstrip() }}|{{ messages[1].content.rstrip() }}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}",
    "{{ messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    "{{ 'a-b-c'.split('-') }} {{ 'a b  c'.split() }} {{ 'a-b-c'.split('-', 1) }} {{ 'a-b-c'.rsplit('-', 1) }}",
    "{{ ' a b  c '.rsplit() }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'abab'.rsplit('b') }} {{ 'abc'.removeprefix('a').removesuffix('x') }}",
    "{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'ab'.capitalize() }}{{ 'ab cd'.title() }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.endswith('ab') }} {{ 'abc'.find('c') }} {{ 'abc'.replace('b', 'x') }}",
    "{{ 'a,b'.join(['1', '2']) }} {{ 'aXbX'.count('X') }} {{ '12'.isdigit() }} {{ 'a\\nb'.splitlines() }}",
    "{{ map.get('a') }} {{ map.get('zz') }} {{ map.get('zz', 7) }} {{ map.keys() | list }} {{ map.values() | list }}",
    # filters
    "{{ messages | length }} {{ items | first }} {{ items | last }} {{ items | sort | join(',') }} {{ items | reverse | join }}",
    "{{ '  x ' | trim }}|{{ 'aB' | upper }}|{{ 'aB' | lower }}|{{ 'ab' | title }}|{{ 'ab' | capitalize }}|{{ 'a-b' | replace('-', '+') }}",
    "{{ messages | map(attribute='role') | join(' ') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}",
    "{{ [1, 2, 3, 4] | select('odd') | list }} {{ [1, 2] | sum }} {{ [3, 1] | max }} {{ [3, 1] | min }} {{ [1, 1, 2] | unique | list }}",
    "{{ zz | default('d') }} {{ '' | default('d', true) }} {{ 3.7 | int }} {{ '5' | int + 1 }} {{ 3 | string + 'x' }} {{ 2 | float }} {{ -3 | abs }} {{ 2.567 | round(1) }}",
    "{{ 'a\\nb' | indent(2) }} {{ 'x' | safe }} {{ map | items | list }} {{ 'abc' | list }}",
    "{{ '<b>' | e }}",
    # tojson
    "{{ tools | tojson }}", "{{ tools | tojson(indent=4) }}", "{{ tools[0].function | tojson(indent=2) }}",
    "{{ messages[1].content | tojson }}", "{{ messages[2].tool_calls[0].function.arguments | tojson }}",
    "{{ big | tojson }} {{ ratio | tojson }} {{ none | tojson }} {{ true | tojson }} {{ '\\u2028\\x07\\x7f' | tojson }}",
    "{{ map | tojson(sort_keys=true) }} {{ items | tojson(separators=(',', ':')) }} {{ 'é' | tojson(ensure_ascii=true) }}",
    "{{ [] | tojson(indent=2) }}{{ {} | tojson }} {{ {'a': [], 'b': {}} | tojson(indent=1) }}", "{{ nothing | tojson }}",
    # functions and macros
    "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %-d %I %p') }}",
    "{{ raise_exception('no') }}", "{% if false %}{{ raise_exception('no') }}{% endif %}ok",
    "{% macro tag(name, body='x') %}<{{ name }}>{{ body }}</{{ name }}>{% endmacro %}{{ tag('a') }}{{ tag('b', body='y') }}",
    "{% macro deep(n) %}{{ n }}{% if n > 0 %}{{ deep(n - 1) }}{% endif %}{% endmacro %}{{ deep(3) }}",
    "{% set x %}block {{ number }}{% endset %}[{{ x }}]", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% filter upper %}abc{% endfilter %}", "{% call(x) f() %}{% endcall %}", "{% with a = 5 %}{{ a }}{% endwith %}",
    "{{ dict(a=1) }} {{ namespace(a=1).a }}",
    # errors
    "{{ nothing.attribute }}", "{{ nothing['x'] }}", "{{ messages[0].nothing.more }}", "{{ 'a' + 1 }}", "{{ 'a'.nomethod() }}",
    "{{ 1 / 0 }}", "{{ nofunction() }}", "{{ messages[99] }}|", "{{ messages[0]['content'] + none }}", "{{ 'a' | nofilter }}",
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main(out):
    env = environment()
    cases = []
    for template in TEMPLATES:
        case = {"template": template}
        try:
            case["text"] = env.from_string(template).render(
                messages=MESSAGES, documents=None, bos_token="<s>", eos_token="</s>", **OPTIONS)
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    with open(out, "w") as f:
        json.dump({"messages": MESSAGES, "options": OPTIONS, "cases": cases}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
