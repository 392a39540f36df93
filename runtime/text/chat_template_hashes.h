// runtime/text/chat_template_hashes.h: the SHA-256 of each known template, as it stands in tokenizer_config.json or
// chat_template.jinja. Published checkpoints differ in newlines: at the end, and in strings as themselves or as \n.
// scripts/fixtures/make_chat_golden.py makes this table.
#pragma once

#include <string_view>

#include "runtime/text/chat_template.h"

namespace weft::runtime {

struct KnownTemplate {
  std::string_view sha256;
  ChatFamily family;
};

inline constexpr KnownTemplate kKnownTemplates[]{
    {"2aecbc267aaf5544d8bf63082bd4beeda365635896d2b3e1faf2f52c8de2319d", ChatFamily::chatml},
    {"5f08b42e1ddf3186dd3419e94844c185e2d6cf80f974a16eeb8bf77f1963476d", ChatFamily::chatml},
    {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e", ChatFamily::chatml},
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", ChatFamily::chatml},
    {"64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326", ChatFamily::chatml},
    {"9780fae5bfea3cfd7be37d328c6edfd296a8869be8131495bbe7eb37e780c88c", ChatFamily::llama2},
    {"1623de5159d584da0b6c78f86ae57b2328746122f2c58446ab7f84bce8c7c57f", ChatFamily::llama2},
    {"e8d5b5a546d3f19df16a5320c614fab05bdc4edd50e850f1afd947b503ea41cf", ChatFamily::llama2},
    {"b75e17085cfc511ead6d4fab84b86ab3c168ec7a332568a91d0889cdcba94394", ChatFamily::llama3},
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", ChatFamily::llama3},
    {"4f46ecd43418f216df8c26936c60e5d04bcc81db47db5d86fbe889f64212dd4c", ChatFamily::llama3},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", ChatFamily::llama3},
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", ChatFamily::llama3_1},
    {"e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65", ChatFamily::llama3_1},
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", ChatFamily::llama3_2},
    {"5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4", ChatFamily::llama3_2},
    {"bbc58aad99454df60138be9530c9601a0adfe3d8932cda975e1f10b2410ddc51", ChatFamily::mistral_system},
    {"796853172235ab3aaa4810013ddfe2eab481bda3306dad4f700c00d436eed596", ChatFamily::mistral_system},
    {"7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495", ChatFamily::mistral_v0_1},
    {"26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7", ChatFamily::mistral_v0_2},
    {"cafb64e0e9e5fd2503054b3479593fae39cbdfd52338ce8af9bb4664a8eb05bd", ChatFamily::mistral_v0_3},
    {"e16746b40344d6c5b5265988e0328a0bf7277be86f1c335156eae07e29c82826", ChatFamily::mistral_v0_3},
    {"9161685725c9f49b4f36d8f446bcdb801a68ba70f91764dffccafcddcb69cfe9", ChatFamily::qwen1_5},
    {"7a2fad4301dcce93b13747dfd6ee5fa696dc12de86b85b86344bea8f649022b3", ChatFamily::qwen1_5},
    {"f0206845c9ebc3abb4735d44f286eb81ce99238ad2accc710c6fc60e6cb8ccc8", ChatFamily::qwen2},
    {"793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", ChatFamily::qwen2},
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", ChatFamily::qwen2_5},
    {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f", ChatFamily::qwen2_5},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", ChatFamily::qwen3},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", ChatFamily::qwen3},
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", ChatFamily::smollm2},
    {"4f39e3a4b9e3d369b42fd00d93a78f171914bb4e58ec84fc420433d7a153288a", ChatFamily::zephyr},
    {"66291cf0045c2425a3a667cf3cbb7af2b11f09e025c02f97245323ab79119362", ChatFamily::zephyr},
};

}  // namespace weft::runtime
