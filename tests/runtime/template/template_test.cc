// Templates in Jinja: texts and refusals are those of jinja2 with transformers' settings
// (scripts/fixtures/make_template_golden.py), and hostile templates end soon with one line.
#include "runtime/template/template.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nlohmann::ordered_json;
using runtime::jinja::DateWanted;
using runtime::jinja::Surroundings;
using runtime::jinja::Template;
using runtime::jinja::TemplateError;
using runtime::jinja::TemplateRefusal;

namespace {

std::string render(const std::string& source, const ordered_json& variables = ordered_json::object()) {
  return Template(source).render(variables);
}

/// Ends within ten seconds, under a sanitizer too, with a text or with an error that has a place and one line.
void check_ends(const std::string& source, const ordered_json& variables = ordered_json::object()) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    render(source, variables);
  } catch (const TemplateError& error) {
    const std::string what = error.what();
    CHECK(what.find('\n') == std::string::npos);
    CHECK(what.find(": ") != std::string::npos);
    CHECK(std::isdigit(static_cast<unsigned char>(what[0])) != 0);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

std::string times(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("every construct gives what jinja2 gives", "[runtime][template]") {
  const ordered_json golden = ordered_json::parse(read_text(data_path("template/cases.json")));
  Surroundings around;
  around.now.emplace();
  REQUIRE(strptime("2025-03-03", "%Y-%m-%d", &*around.now) != nullptr);
  std::size_t texts = 0, refusals = 0;
  for (const ordered_json& each : golden.at("cases")) {
    const std::string source = each.at(0).get<std::string>();
    CAPTURE(source);
    const auto run = [&] { return Template(source).render(golden.at("variables"), around); };
    if (each.size() == 2) CHECK(run() == each.at(1).get<std::string>());
    else CHECK_THROWS_AS(run(), TemplateError);
    ++(each.size() == 2 ? texts : refusals);
  }
  CHECK(texts > 450);
  CHECK(refusals > 80);
}

TEST_CASE("errors of a template have a place and say what is wrong", "[runtime][template]") {
  CHECK_THROWS_WITH(render("a\n  {{ 1 + }}"), StartsWith("2:10: the tag ends too early"));
  CHECK_THROWS_WITH(render("{% if x %}"), StartsWith("1:11: the template ends before 'elif'"));
  CHECK_THROWS_WITH(render("{{ x.y }}"), StartsWith("1:5: 'x' is undefined"));
  CHECK_THROWS_WITH(render("ü{{ 'a' + 1 }}"), StartsWith("1:9: unsupported operand types for +: 'str' and 'int'"));
  CHECK_THROWS_WITH(render("{{ x|nope }}"), Contains("no filter named 'nope'"));
  CHECK_THROWS_WITH(render("{% include 'a' %}"), Contains("'include' is not supported"));
  CHECK_THROWS_WITH(render("{{ 9223372036854775807 + 1 }}"), Contains("does not fit 64 bits"));
  CHECK_THROWS_WITH(render("{{ [].append(1) }}"), Contains("'append' of 'list' object is unsafe"));
  CHECK_THROWS_AS(render("{{ strftime_now('%Y') }}"), DateWanted);
  try {
    render("{{ raise_exception('no\nway') }}");
    FAIL("it raises");
  } catch (const TemplateRefusal& refusal) {
    CHECK(refusal.said == "no way");
    CHECK_THAT(refusal.what(), StartsWith("1:19: no way"));
  }
}

TEST_CASE("wordcount counts the words of what is no text, too", "[runtime][template]") {
  CHECK(render("{{ 5 | wordcount }}{{ [1, 'a b'] | wordcount }}{{ none | wordcount }}") == "131");
}

TEST_CASE("a template says which names it uses", "[runtime][template]") {
  const Template made(
      "{% for m in messages %}{{ m['content'] }}{% for c in m.parts %}{{ tools }}{% endfor %}{% endfor %}");
  for (const char* word : {"messages", "m", "content", "parts", "tools"}) CHECK(made.mentions(word));
  CHECK_FALSE(made.mentions("documents"));
  CHECK(made.loops_over("messages"));
  CHECK(made.loops_over("parts"));
  CHECK_FALSE(made.loops_over("content"));
}

TEST_CASE("hostile templates end soon", "[runtime][template]") {
  const std::string deep = times("(", 100'000) + "1" + times(")", 100'000);
  for (const std::string& source : {
           std::string("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
           std::string("{% for a in range(99999999) %}{% endfor %}"),
           std::string("{{ 'a' * 99999999999 }}"),
           std::string("{{ [1] * 99999999999 }}"),
           std::string("{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}"),
           std::string("{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}"),
           std::string("{% set n = namespace(x=[1]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}"),
           std::string(
               "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
           std::string("{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
                       "n.x == n.x }}"),
           std::string("{% set n = namespace(x=1) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
                       "n.x|tojson }}"),
           std::string("{% set n = namespace(x=(1,)) %}{% for i in range(90) %}{% set n.x = (n.x, n.x) %}{% endfor "
                       "%}{{ {n.x: 1} }}"),
           std::string("{% set n = namespace() %}{% set n.x = n %}{{ n }}"),
           std::string(
               "{% set n = namespace(x=0) %}{% for i in range(100000) %}{% set n.x = namespace(p=n.x) %}{% endfor %}"),
           std::string(
               "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x].index %}{% endfor %}"),
           std::string(
               "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x]|select %}{% endfor %}"),
           std::string("{% set n = namespace(x=0) %}{% for i in range(100000) %}{% for j in [n.x] %}{% set n.x = loop "
                       "%}{% endfor %}{% endfor %}"),
           std::string("{% set n = namespace(x=0) %}{% for i in range(100000) %}{% set y = n.x %}{% for j in [1] "
                       "recursive %}{% set n.x = loop %}{% endfor %}{% endfor %}"),
           std::string("{% set n = namespace(x=0) %}{% macro f(p) %}{% macro g() %}{{ p }}{% endmacro %}{% set n.x = g "
                       "%}{% endmacro %}{% for i in range(100000) %}{{ f(n.x) }}{% endfor %}"),
           std::string("{% set n = namespace(x=0) %}{% macro f() %}{% set n.x = caller %}{{ caller() }}{% endmacro "
                       "%}{% for i in range(100000) %}{% set y = n.x %}{% call f() %}{% endcall %}{% endfor %}"),
           std::string(
               "{% set n = namespace(x=0) %}{% for i in [1] %}{% set n.x = loop %}{% set n.c = loop.cycle %}{% set n.d "
               "= loop.changed %}{% endfor %}{{ n.x.index }}{{ n.x.last }}{{ n.x.nextitem }}{{ n.c(1) }}{{ n.d(1) }}"),
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"),
           std::string("{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}"),
           std::string("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
           std::string("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"),
           std::string("{{ ('a' * 1000000).replace('', 'b' * 1000000) }}"),
           std::string("{{ ('ab' * 10000000).split('b') | length }}"),
           std::string("{% set s = 'a' * 5000000 %}{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}"),
           std::string("{% set s = 'a' * 5000000 %}{% for i in range(100000) %}{{ s[i] }}{% endfor %}"),
           std::string("{% set s = 'a' * 1000000 %}{{ (s ~ 'b').rfind('b' ~ s) }}{{ ('b' ~ s) in s }}"),
           std::string("{% set s = 'a' * 1000000 %}{{ s.upper()|lower|title|indent(1000000) }}"),
           std::string("{{ '%9999s' % 'a' * 9999 }}{{ '%99999999s' % 'a' }}"),
           std::string("{{ 'a'.center(99999999999) }}{{ 'a'.zfill(99999999999) }}"),
           std::string("{{ ['a']|batch(999999999999, 'x')|list }}{{ ['a']|slice(999999999999)|list }}"),
           std::string("{{ 2 ** 99999999 }}{{ 2.0 ** 99999999 }}"),
           std::string("{{ (-9223372036854775807 - 1) // -1 }}"),
           std::string("{{ -9223372036854775807 - 1 | abs }}{{ [1, 2, 3][::9223372036854775807] }}{{ "
                       "[1][-9223372036854775807:] }}"),
           "{{ " + deep + " }}",
           "{{ " + times("[", 100'000) + times("]", 100'000) + " }}",
           "{{ " + times("not ", 100'000) + "1 }}",
           "{{ " + times("-", 100'000) + "1 }}",
           "{{ 1" + times("+1", 100'000) + " }}",
           "{{ 1" + times("|abs", 100'000) + " }}",
           "{{ a" + times(".a", 100'000) + " }}",
           "{{ a" + times("[a", 100'000) + " }}",
           "{{ 1" + times(" if 1 else 1", 100'000) + " }}",
           "{{ 1" + times(" ~ 1", 100'000) + " }}",
           "{{ {" + times("1:", 100'000) + " }}",
           times("{% if 1 %}", 50'000),
           times("{% for i in [1] %}", 50'000) + times("{% endfor %}", 50'000),
           "{% if 0 %}" + times("{% elif 0 %}", 50'000) + "{% endif %}",
           "{% set " + times("(", 100'000) + "a" + times(")", 100'000) + " = 1 %}",
           times("{{ '", 100'000),
           times("{#", 100'000),
           times("{% raw %}", 100'000),
           times("{", 900'000),
           times(" ", 900'000) + "{{- 1 }}",
           times("{%- -%}", 10'000),
       }) {
    CAPTURE(source.substr(0, 120));
    check_ends(source);
  }
}

TEST_CASE("a template that is cut or changed anywhere is read or refused", "[runtime][template]") {
  const ordered_json golden = ordered_json::parse(read_text(data_path("template/cases.json")));
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same changes in each run
  const std::string marks = "{}%#-+ \n'\"()[]|.,:=~*<>\\0129abcxyz\xC3\xFF";
  std::vector<std::string> sources;
  for (const ordered_json& each : golden.at("cases")) sources.push_back(each.at(0).get<std::string>());
  for (int i = 0; i < 3000; ++i) {
    std::string source = sources[random() % sources.size()] + sources[random() % sources.size()];
    for (unsigned change = 0; change < 1 + random() % 4 && !source.empty(); ++change) {
      const std::size_t at = random() % source.size();
      switch (random() % 3) {
        case 0: source[at] = marks[random() % marks.size()]; break;
        case 1: source.insert(at, 1, marks[random() % marks.size()]); break;
        default: source.erase(at, 1 + random() % 3);
      }
    }
    CAPTURE(source);
    check_ends(source, golden.at("variables"));
  }
}
