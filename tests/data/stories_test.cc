// The built-in stories: version 2 has fixed bytes, and every story is
// consistent.
#include "aft/data/stories.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace aft::data {
namespace {

struct Story {
  std::string title, body, hero, kind, end;  // end: the last paragraph
};

std::vector<Story> stories() {
  static const std::regex kHero("^[^.]* ([a-z]+) named ([A-Z][a-z]+)\\.");
  const std::string& text = built_in_stories();
  std::vector<Story> all;
  for (size_t at = 0, next; at < text.size(); at = next + 2) {
    next = std::min(text.find("\n\n", at), text.size() - 1);
    const std::string story = text.substr(at, next - at);
    const size_t line = story.find('\n');
    Story s;
    s.title = story.substr(0, line);
    s.body = story.substr(line + 1);
    s.end = story.substr(story.rfind('\n') + 1);
    std::smatch match;
    EXPECT_TRUE(std::regex_search(s.body, match, kHero)) << story;
    s.kind = match[1];
    s.hero = match[2];
    all.push_back(s);
  }
  return all;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int number(const std::string& word) {
  const std::vector<std::string> words = {"zero",  "one",  "two", "three",
                                          "four",  "five", "six", "seven",
                                          "eight", "nine", "ten"};
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return static_cast<int>(i);
  return -1;
}

TEST(Stories, Version2NeverChanges) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : built_in_stories())
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  EXPECT_EQ(built_in_stories().size(), 1100361u);
  EXPECT_EQ(hash, 0x73460117da930b83u);
}

TEST(Stories, MadeOnceForAllThreads) {
  const std::string* seen[2] = {nullptr, nullptr};
  std::thread one([&] { seen[0] = &built_in_stories(); });
  std::thread two([&] { seen[1] = &built_in_stories(); });
  one.join();
  two.join();
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(Stories, PlainText) {
  const std::string& text = built_in_stories();
  for (const char c : text)
    ASSERT_TRUE(std::isalpha(static_cast<unsigned char>(c)) ||
                contains("\n .,!?\"", std::string(1, c)))
        << static_cast<int>(c);
  for (const char* wrong :
       {"  ", " \n", "\n ", "\n\n\n", " .", " ,", "..", " i "})
    EXPECT_FALSE(contains(text, wrong)) << '"' << wrong << '"';
  EXPECT_FALSE(std::regex_search(text, std::regex("[.!?] [a-z]")));
  EXPECT_FALSE(std::regex_search(text, std::regex("\n[a-z]")));
  EXPECT_FALSE(
      std::regex_search(text, std::regex("\\b([Aa] [aeiou]|[Aa]n [^aeiou])")));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_TRUE(contains(".!\"", text.substr(text.size() - 2, 1)));
}

TEST(Stories, SmallVocabulary) {
  std::map<std::string, int> words;
  std::string word;
  for (const char c : built_in_stories()) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      ++words[word];
      word.clear();
    }
  }
  EXPECT_GE(words.size(), 300u);
  EXPECT_LE(words.size(), 900u);
  for (const auto& [w, count] : words) EXPECT_GE(count, 15) << w;
}

TEST(Stories, NoTwoAreTheSame) {
  std::set<std::string> bodies;
  const std::vector<Story> all = stories();
  EXPECT_GT(all.size(), 1500u);
  for (const Story& s : all)
    EXPECT_TRUE(bodies.insert(s.body).second) << s.body;
}

TEST(Stories, HeroIsInTheTitleAndAtTheEnd) {
  std::map<std::string, std::string> kinds, pronouns;
  for (const Story& s : stories()) {
    EXPECT_TRUE(contains(s.title, s.hero)) << s.title;
    EXPECT_TRUE(contains(s.end, s.hero)) << s.title << '\n' << s.end;
    // A name always belongs to the same kind: Tom is a boy, Finn a fox.
    EXPECT_EQ(kinds.emplace(s.hero, s.kind).first->second, s.kind) << s.hero;
    std::smatch match;  // and has the same pronoun
    if (std::regex_search(s.body, match,
                          std::regex(s.hero + "[.] (He|She) "))) {
      EXPECT_EQ(pronouns.emplace(s.hero, match[1]).first->second, match[1]);
    }
  }
  EXPECT_EQ(kinds.size(), 32u);
  EXPECT_EQ(pronouns.size(), 32u);
  EXPECT_EQ(pronouns["Tom"], "He");
  EXPECT_EQ(pronouns["Mia"], "She");
}

TEST(Stories, LostThingsComeBack) {
  const std::regex lost(
      "^[A-Z][a-z]+ and the ((red|blue|green|yellow|white|"
      "pink|purple|orange|brown|black) [a-z]+)$");
  int count = 0;
  for (const Story& s : stories()) {
    std::smatch match;
    if (!std::regex_match(s.title, match, lost)) continue;
    ++count;
    EXPECT_TRUE(contains(s.end, match[1])) << s.title << '\n' << s.end;
  }
  EXPECT_GT(count, 100);
}

TEST(Stories, SharedThingsAddUp) {
  const std::regex gave("gave ([a-z]+) of the ([a-z]+) .* had ([a-z]+) and");
  const std::regex kept(
      "kept ([a-z]+) of the ([a-z]+) [a-z]+ and gave ([a-z]+)");
  int count = 0;
  for (const Story& s : stories()) {
    std::smatch match;
    if (!std::regex_search(s.body, match, gave) &&
        !std::regex_search(s.body, match, kept))
      continue;
    ++count;
    EXPECT_EQ(number(match[1]) + number(match[3]), number(match[2])) << s.body;
    EXPECT_TRUE(contains(s.title, match[2])) << s.title;
  }
  EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace aft::data
