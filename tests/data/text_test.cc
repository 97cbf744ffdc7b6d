// Texts: the codec, splits, preparation modes and training windows.
#include "aft/data/text.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace aft::data {
namespace {

const std::string kText = "aab\nbaa\nab\ncaaaaaab\n";

TEST(TextCodec, Bytes) {
  const TextCodec codec;
  EXPECT_EQ(codec.vocabulary(), 256);
  EXPECT_EQ(codec.symbols(), "");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    EXPECT_EQ(codec.byte_of(byte), byte);
    EXPECT_EQ(codec.symbol_of(static_cast<uint8_t>(byte)), byte);
  }
  EXPECT_EQ(codec.encode("a\xff"), (std::vector<int64_t>{97, 255}));
  EXPECT_EQ(codec.decode(codec.encode(all)), all);
}

TEST(TextCodec, SymbolsOfAModel) {
  const TextCodec codec("txl", "61620a");  // a, b, newline
  EXPECT_EQ(codec.vocabulary(), 3);
  EXPECT_EQ(codec.symbols(), "61620a");
  EXPECT_EQ(codec.symbol_of('b'), 1);
  EXPECT_EQ(codec.symbol_of('c'), -1);
  const TextCodec no_newline("txl", "6261");
  int64_t unknown = 5;
  EXPECT_EQ(no_newline.encode("a\nb c\n", &unknown),
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(unknown, 7);  // the blank and c; newlines do not count
  EXPECT_EQ(no_newline.decode({1, 0, 0}), "abb");
  for (const char* bad : {"", "6", "616", "6161", "6g", "6A", "61 "})
    EXPECT_THROW(TextCodec("eos", bad), DataError) << bad;
  EXPECT_THROW(TextCodec("words"), DataError);
}

TEST(TextCodec, NumbersByFrequency) {
  std::array<int64_t, 256> counts{};
  counts['x'] = 2, counts['b'] = 3, counts['c'] = 2, counts['\n'] = 9;
  EXPECT_EQ(TextCodec::from_counts("txl", counts).symbols(), "626378");
  EXPECT_EQ(TextCodec::from_counts("eos", counts).symbols(), "0a626378");
  EXPECT_EQ(TextCodec::from_counts("bytes", counts).vocabulary(), 256);
  EXPECT_THROW(TextCodec::from_counts("words", counts), DataError);
}

TEST(Text, SplitsAndModes) {
  const Text bytes = Text::from(kText, "bytes");
  EXPECT_EQ(bytes.train().size + bytes.valid().size + bytes.test().size, 20);
  EXPECT_EQ(bytes.train().size, 18);
  EXPECT_EQ(bytes.codec().vocabulary(), 256);
  const Text txl = Text::from(kText, "txl");
  EXPECT_EQ(txl.codec().vocabulary(), 3);  // a, b, c
  EXPECT_EQ(txl.codec().symbol_of('a'), 0);
  EXPECT_EQ(txl.codec().symbol_of('b'), 1);
  EXPECT_EQ(txl.codec().symbol_of('\n'), -1);
  EXPECT_EQ(txl.codec().byte_of(2), 'c');
  EXPECT_EQ(txl.train().size + txl.valid().size + txl.test().size, 16);
  const Text eos = Text::from(kText, "eos");
  EXPECT_EQ(eos.codec().vocabulary(), 4);
  EXPECT_EQ(eos.codec().byte_of(eos.codec().symbol_of('\n')), '\n');
  EXPECT_THROW(Text::from("a", "words"), DataError);
  EXPECT_THROW(Text::open("/nowhere", "bytes"), DataError);
  EXPECT_EQ(bytes.split("all").data, bytes.train().data);
  EXPECT_EQ(bytes.split("all").size,
            bytes.train().size + bytes.valid().size + bytes.test().size);
  EXPECT_THROW(bytes.split("dev"), DataError);
}

TEST(Text, WithTheSymbolsOfAnotherText) {
  const std::string symbols = Text::from(kText, "txl").codec().symbols();
  const Text other = Text::from("cab\n", "txl", symbols);
  EXPECT_EQ(other.codec().symbols(), symbols);
  ASSERT_EQ(other.train().size + other.valid().size + other.test().size, 3);
  EXPECT_EQ(other.valid().data[0], 2);  // c
  try {
    Text::from("cad\n", "txl", symbols);
    ADD_FAILURE() << "no error";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("contains byte 100, which does not "
                                         "occur in the model's text"),
              std::string::npos)
        << e.what();
  }
}

TEST(Windows, EpochVisitsEveryWindowOnce) {
  const int64_t size = 1000, T = 16;
  Windows windows(size, T, 1), again(size, T, 1), other(size, T, 2);
  const int64_t n = windows.per_epoch();
  EXPECT_EQ(n, 61);
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 2 * n; ++i)
    (i < n ? first : second).push_back(windows.start(i));
  for (const auto& epoch : {first, second}) {
    std::set<int64_t> starts(epoch.begin(), epoch.end());
    ASSERT_EQ(static_cast<int64_t>(starts.size()), n);
    EXPECT_GE(*starts.begin(), 0);
    EXPECT_LT(*starts.begin(), T);
    EXPECT_LT(*starts.rbegin() + T, size);
    int64_t last = *starts.begin() - T;
    for (const int64_t s : starts) {
      EXPECT_EQ(s, last + T);
      last = s;
    }
  }
  EXPECT_NE(first, second);
  // Examples do not depend on the order of the calls.
  EXPECT_EQ(again.start(n + 5), second[5]);
  EXPECT_EQ(again.start(3), first[3]);
  EXPECT_NE(other.start(3), first[3]);
  EXPECT_THROW(Windows(20, 16, 1), DataError);
}

}  // namespace
}  // namespace aft::data
