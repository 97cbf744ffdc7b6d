// A small grammar with variables, and the stories it generates.
//
// A rule is `name = choice / choice ...`; indented lines continue it. `~`
// starts a paragraph, [choice / choice] chooses in place, braces are slots:
//   {x}       the variable x of this story, or else a choice of rule x
//   {X}       the same with a capital first letter
//   {a x}     the same after "a" or "an"; {A x} after "A" or "An"
//   {x=y}     sets the variable x for the rest of the story; prints nothing
// A rule `name(p q) = word|this|that / ...` is a table: {x=name} sets x to
// `word`, x.p to `this` and x.q to `that`. Within a story a rule repeats no
// choice before it has used all of them, so two friends are never the same.
#include "aft/data/stories.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <vector>

namespace aft::data {
namespace {

// clang-format off
constexpr char kGrammar[] =  // parts, as some compilers limit a literal
R"(
m = he|him|his
f = she|her|her
b = boy|{m}
g = girl|{f}
i = it|it|its
people(kind he him his) = Tom|{b} / Ben|{b} / Sam|{b} / Max|{b} / Leo|{b} /
 Jack|{b} / Tim|{b} / Dan|{b} / Mia|{g} / Lily|{g} / Anna|{g} / Sue|{g} /
 Emma|{g} / Lucy|{g} / Rose|{g} / Nora|{g} / Finn|fox|{m} / Bruno|bear|{m} /
 Milo|mouse|{m} / Rex|dog|{m} / Hugo|hedgehog|{m} / Freddy|frog|{m} /
 Gus|goat|{m} / Sid|squirrel|{m} / Bella|rabbit|{f} / Daisy|duck|{f} /
 Coco|cat|{f} / Tilly|turtle|{f} / Penny|pig|{f} / Molly|monkey|{f} /
 Polly|pony|{f} / Ella|elephant|{f}
helpers(the he him his) = an old owl|the owl|{i} / a wise crow|the crow|{i} / a
 gray donkey|the donkey|{i} / a kind farmer|the farmer|{m} / a tall man|the
 man|{m} / a strong sailor|the sailor|{m} / an old woman|the woman|{f} / a
 friendly baker|the baker|{f} / a nice teacher|the teacher|{f}
places(at) = park|in / garden|in / forest|in / meadow|in / village|in / yard|in
 / river|by / lake|by / pond|by / sea|by / beach|at / farm|on / hill|on /
 market|at
here = {place.at} the {place}
colors = red / blue / green / yellow / white / pink / purple / orange / brown /
 black
t = {c} {toy}
toys = ball / kite / hat / drum / cup / book / bell / boat / car / doll / bag /
 scarf / ring / train / shoe / button / key / box
spots = under the old bench / behind the big tree / in the tall grass / next to
 the gate / under the bridge / behind the rock / in the hollow log / under the
 dry leaves / behind the wall / under the bush / behind the barn
cast = {h=people} {he=h.he}{him=h.him}{his=h.his} {p=people}
 {place=places}{who=helpers}{guide=who.the}
seats = under a tree / on a big rock / on a bench / next to the gate
house = little / small / big / red / white / pretty / cozy
size = little / small / young / happy / kind / brave / clever / good / funny /
 quiet
opening = Once upon a time, there was a {size} {h.kind} named {h}. / Once there
 was a {size} {h.kind} named {h}. / Long ago, there was a {size} {h.kind} named
 {h}.
detail = {He} lived in a {house} house {here}. / {He} liked to play {here}. /
 {He} liked to {hobby} and to {hobby}. / {He} liked to {hobby} {here}. / Every
 day, {he} went to the {place} to {hobby}. / Everyone {here} knew {h}.
home = {He} lived in a {house} house {here}. / {He} had many friends {here}. /
 Everyone {here} knew {h}.
hobby = run / sing / dance / jump / read / draw / play / dig / sleep / look at
 the clouds / pick flowers
when = One day / One morning / One sunny day / One afternoon / One fine day /
 One Monday / One Sunday / Early one morning
weather = The sun was warm. / The sky was blue. / The birds sang in the trees. /
 A soft wind blew. / / /
sad = {H} was very sad. / {H} began to cry. / {He} felt sad. / A big tear ran
 down {his} face. / {H} did not know what to do. / "Oh no!" said {h}. / "Oh no!
 What can I do?" said {h}.
glad = {H} was very happy. / {H} jumped for joy. / {H} smiled a big smile. / {H}
 laughed and danced. / "Hooray!" said {h}. / "This is great!" said {h}.
thanks = "Thank you so much!" said {h}. / "Thank you! You are very kind," said
 {h}. / "Thank you, thank you!" {h} said. / {H} thanked {guide} and gave
 {who.him} a hug.
welcome = "You are welcome," said {guide}. / "I am glad to help," said {guide}
 with a smile. / {Guide} smiled. "It was easy," {who.he} said. / /
ending = {H} went home with a smile. / That night, {h} slept very well. / For
 {h}, it was the best day of the year. / And {h} was happy all day long. / Then
 {h} ran home to tell {his} mother. / At home, {h} ate warm soup and went to
 bed. / When the moon came up, {h} was fast asleep.
both = From that day on, {h} and {p} were best friends. / {H} and {p} went home
 side by side. / {H} and {p} laughed all the way home. / After that, {h} and {p}
 played every day. / {H} and {p} were friends forever.
together = {H} and {p} sat {here} and ate [cake / warm soup / bread and honey /
 sweet plums]. / They played {here} until the sun went down. / {P} smiled at
 {h}, and {h} smiled at {p}. / "You are my best friend," said {p}. "And you are
 mine," said {h}.
story = {lost} / {stuck} / {share} / {learn} / {meet} / {build} / {gift} /
 {count} / {grow}
lost = {cast}{toy=toys}{c=colors}{spot=spots}{H} and the {t}~ {opening} {detail}
 [{He} had {a t}. {He} took the {t} everywhere. / {He} loved {his} {t} more than
 anything. / What {he} loved most was {his} {t}.]~ {when}, [{h} could not find
 {his} {t}. / {h} lost {his} {t} {here}. / the {t} was gone! / {h} came home
 from the {place} without {his} {t}.] {sad} {look} {look}~ [Then {h} met {who}.
 "Did you see my {t}?" {he} asked. / {Who} came by. "Why are you so sad?" asked
 {guide}. "I lost my {t}," said {h}. / So {h} asked {who}. "Where is my {t}?"]
 ["I saw {a t} {spot}," said {guide}. / "There is {a t} {spot}," {who.he} said.
 / {Guide} thought for a moment. "Look {spot}," {who.he} said.]~ [{H} looked
 {spot}. There was the {t}! / They went to look, and {spot} they found the {t}.]
 {glad}~ {thanks} {welcome} [{H} never lost {his} {t} again. / {H} put the {t}
 in a safe place. / From then on, {h} took good care of the {t}.] {ending}
look = {He} looked {spots}, but the {toy} was not there. / {He} looked {spots}.
 No {toy}! / {H} looked {spots}, but {he} found only [a leaf / an ant / a snail
 / an acorn]. / {H} ran to look {spots}. It was not there.
babies(where get out) = kitten|in a tall tree|get down|down from the tree /
 lamb|in the deep mud|get out|out of the mud / duckling|in a deep hole|get
 out|out of the hole / puppy|under a fence|get out|out from under the fence /
 chick|in an old well|get out|out of the well
stuck = {cast}{baby=babies}{tool=tools}{H} and the {baby}~ {opening} {detail}~
 {when}, {h} went for a walk {here}. {weather} [{He} heard a tiny voice. A
 {baby} was stuck {baby.where}! / There was a {baby} {baby.where}. It could not
 {baby.get}.] ["Help! Help!" cried the {baby}. / The {baby} was cold and afraid.
 / "I want my mother," said the {baby}.]~ {try} {try} [So {he} ran to get {who}.
 "Come quickly! A {baby} is stuck {baby.where}," said {h}. / Then {who} came by.
 "Can you help the {baby}?" asked {h}. "Yes, I can," said {guide}. / Then {h}
 saw {who}. "We must help the {baby}!" {he} said. "Let us do it together," said
 {guide}.]~ {Guide} brought {a tool}. [With the {tool}, they got the {baby}
 {baby.out}. / They used the {tool}, and soon the {baby} was free.] {glad}~ [The
 {baby} was safe. It went back to its mother. / "You saved me!" said the {baby}.
 / The {baby} gave {h} a kiss on the nose. / The {baby} was happy and not afraid
 any more.] {thanks} {ending}
try = {H} tried to reach the {baby}, but it was too far away. / {H} took a
 stick, but the stick was too short. / {H} called for help, but no one came. /
 {H} told the {baby} not to be afraid.
tools = long rope / tall ladder / strong net / big basket / long pole
fruits(color) = apples|red / plums|purple / pears|green / berries|blue /
 carrots|orange / nuts|brown / cherries|red / peaches|yellow
sums(give left) = three|one|two / three|two|one / four|two|two / four|one|three
 / five|two|three / five|three|two / six|three|three / seven|three|four /
 eight|four|four / ten|five|five
share = {cast}{fruit=fruits}{n=sums}{u=n.give}{k=n.left}{H} and the {n} {fruit}~
 {opening} {detail} {when}, [{h} found {n} {fruit.color} {fruit}. / {his} mother
 gave {h} {n} {fruit.color} {fruit}. / {h} went to the market and got {n}
 {fruit.color} {fruit}.]~ [{H} met {a p.kind} named {p} {here}. {P} looked sad.
 "I am so hungry," said {p}. "I have no {fruit}." / {P}, a {size} {p.kind}, sat
 {here}. "Why are you sad?" asked {h}. "I have no {fruit}, and I am hungry,"
 said {p}. / Then {a p.kind} named {p} came by. "What do you have there?" asked
 {p}. "I have {n} {fruit}," said {h}. "I have none," said {p}.]~ [{H} wanted to
 eat all {n} {fruit}. But {he} was kind. / {H} looked at {his} {fruit}. {He}
 counted them and smiled. / "Do not be sad," said {h}. "I will share my
 {fruit}."] [{He} gave {u} of the {n} {fruit} to {p}. Now {h} had {k} and {p}
 had {u}. / {H} kept {k} of the {n} {fruit} and gave {u} to {p}. "{U} for you
 and {k} for me," said {h}.]~ [They sat down {here} and ate. / They ate side by
 side.] [The {fruit.color} {fruit} tasted very good. / {H} learned that it is
 good to share. / The {fruit} were all gone, but they were happy.] {both}
)"
R"(
skills(past) = swim|swam / ride a bike|rode a bike / sing a song|sang a song /
 climb a tree|climbed a tree / fly a kite|flew a kite / bake a cake|baked a cake
 / draw a cat|drew a cat / catch a ball|caught a ball / dance|danced
learn = {cast}{skill=skills}How {h} learned to {skill}~ {opening} {home} [{He}
 wanted to {skill}, but {he} did not know how. / More than anything, {he} wanted
 to {skill}. / All {his} friends could {skill}, but {h} could not.]~ {when}, {h}
 tried to {skill}. [It was too hard. / {He} tried two times, but it did not
 work. / {He} tried again and again, but {he} could not {skill}. / "I cannot do
 it," {he} said.] {sad}~ [{Who} saw {h}. "Do not give up," said {guide}. / Then
 {h} met {who}. "Can you teach me to {skill}?" {he} asked. "Of course," said
 {guide}. / {Who} came by. "I can show you how to {skill}," said {guide}.] ["Go
 slowly, and try one more time." / "Be brave. You can do it!" {who.he} said.]~
 [So {h} tried again that day. {He} tried again the next day. / So {h} tried
 again. This time it was a little better. / {H} looked and learned. {He} tried
 every day.] [And then {h} {skill.past}! / At last, {h} {skill.past}! / "Look at
 me!" said {h}. And {he} {skill.past}!] {glad}~ {thanks} [Now {h} could {skill},
 too. / {H} learned that you must never give up. / Then {h} showed {his} friend
 {p} how to {skill}.] {ending}
games = hide and seek / ball / with {a colors} kite / in the sand / a funny game
 / with {a colors} ball
meet = {cast}{game=games}{H} and {p}~ {opening} {detail} [But {h} had no
 friends. {He} was lonely. / {He} had many toys, but no one to play with. / {He}
 wanted to have a friend.]~ {when}, [{h} went to the {place}. / {h} went for a
 walk {here}.] {weather} [There {he} saw {a p.kind}. The {p.kind} was alone,
 too. / {A p.kind} sat {seats}. {P.he} looked shy. / {He} met {a size} {p.kind}
 there.]~ ["Hello! My name is {h}. What is your name?" asked {h}. "My name is
 {p}," said the {p.kind}. / "Hello, I am {p}," said the {p.kind}. "Who are you?"
 "I am {h}," said {h}. / {H} was shy, but {he} said hello. "Hello," said the
 {p.kind}. "I am {p}."] ["Do you want to play with me?" asked {h}. "Yes,
 please!" said {p}. / "Can I play with you?" asked {p}. "Yes! Let us play
 {game}," said {h}. / "Will you be my friend?" asked {h}. {P} smiled and said
 yes.]~ [They played {game} all day. / {H} and {p} played {game} {here}. / First
 they ran, and then they played {game}.] {glad} {together}~ {both}
works(of) = tree house|wood / boat|wood / sand castle|sand / bridge|stones /
 tower|blocks / tent|sticks and leaves / raft|logs / snowman|snow
build = {cast}{work=works}{H} and the {work}~ {opening} {detail} [{He} wanted to
 make a {work}. / "I want to make a big {work}," said {h}.]~ {when}, [{h} went
 out to get {work.of} and made a small {work}. / {h} took some {work.of} and
 made a small {work}.] [But then a strong wind came. / But then it rained and
 rained. / But then a big cow ran into it.] [Crash! The {work} fell apart. / The
 {work} broke into many pieces. / Soon there was no {work}, only {work.of}.]
 {sad}~ [{P} saw it. "I will help you," {p.he} said. / Then {p} came by. "Two
 can work better than one," said {p}.] [{P} held the {work.of}, and {h} did the
 rest. / {H} worked on the left, and {p} worked on the right. / First they made
 a plan. Then they got more {work.of}.]~ [Soon they had a new {work}. It was big
 and strong. / At last the {work} was done. It did not fall apart.] {glad} ["We
 made this {work} together," said {p}. / "Our {work} is the best," said {h}. /
 Everyone came to see the {work}.]~ {together} {both}
gift = {cast}{toy=toys}{c=colors}{H} makes {a t}~ {opening} {detail} [{His} best
 friend was {a p.kind} named {p}. / {He} had a good friend, {a p.kind} named
 {p}.]~ [{when}, {p} said, "It is my birthday today!" / {P} was going to have a
 birthday party.] ["What color do you like best?" asked {h}. "I like {c}," said
 {p}. / {H} knew that {p} liked {c} things. / "I love everything that is {c},"
 said {p}.]~ [{H} went to the market, but there was no {t}. / {H} thought and
 thought. What could {he} give to {p}?] [So {he} made {a t} with {his} own
 hands. / Then {he} met {who}. {Guide} gave {him} {c} paint, and {h} made {a t}.
 / {He} found an old {toy} and painted it {c}.]~ ["Happy birthday, {p}!" said
 {h}. "I made this for you." / {H} gave the {toy} to {p}. "Happy birthday!" {he}
 said.] ["{A t}! I love it," said {p}. / "Oh, {a t}! Thank you, {h}!" said
 {p}.]~ {together} {both}
flocks(one color) = ducklings|duckling|yellow / chicks|chick|yellow /
 lambs|lamb|white / kittens|kitten|gray / puppies|puppy|brown /
 piglets|piglet|pink
counts(less say all) = three|two|One, two|One, two, three / four|three|One, two,
 three|One, two, three, four / five|four|One, two, three, four|One, two, three,
 four, five
count = {cast}{flock=flocks}{one=flock.one}{n=counts}{spot=spots}{H} and the {n}
 {flock}~ {opening} {detail} [{He} took care of {n} {flock.color} {flock}. /
 {He} had {n} {flock}. They were {flock.color} and soft. / {His} mother had {n}
 {flock.color} {flock}, and {h} loved them.]~ {when}, {h} counted the {flock}.
 "{N.say}." There were only {n.less}! One {one} was gone. {sad}~ {seek} {seek}
 [Then {h} asked {who}. "I saw a {flock.color} {one} {spot}," said {guide}. /
 {Who} came by. "Look {spot}," said {guide}. "There is a {one}." / "Shh," said
 {who}. "I hear a {one} {spot}."]~ [{H} looked {spot}. There was the little
 {one}! It was asleep. / {H} ran to look. The {one} sat {spot} and waited. / And
 there it was, {spot}. The {one} was happy to see {h}.] {glad}~ {H} counted
 again. "{N.all}!" All {n} {flock} were there. {thanks} {ending}
seek = {He} looked {spots}, but the {one} was not there. / {H} called the {one},
 but it did not come. / "Little {one}, where are you?" called {h}.
plants(color) = carrot|orange / turnip|white / beet|red / potato|brown /
 onion|yellow / radish|pink
grow = {cast}{plant=plants}{c=plant.color}{H} and the big {plant}~ {opening}
 {detail} [{when}, {h} put a tiny seed in the ground. / {He} had one little
 seed, and {he} put it in the ground.]~ [{H} gave it water every day. / Every
 morning, {h} gave the seed some water. / The rain came, and the sun came.]
 [First there was one green leaf. Then there were two. / It grew and grew and
 grew.]~ [At last there was a big {c} {plant}. / Then one day, there was a very
 big {plant}. It was {c} and heavy. / "What a big {c} {plant}!" said {h}.] {H}
 pulled and pulled, but the {plant} did not move.~ ["Help me, {p}!" said {h}.
 {P} came, and they pulled together. But the {plant} did not move. / Then {a
 p.kind} named {p} came. {H} and {p} pulled and pulled. It did not move.] [Then
 {who} came to help. They all pulled. One, two, three! / So {p} called {who}.
 {H} pulled, {p} pulled, and {guide} pulled.]~ [Pop! Out came the {c} {plant}! /
 Pop! The {plant} came out, and they all fell down. / And out came the big
 {plant}!] [{glad} / "We did it!" said {p}. / "We did it together!" said {h}.]~
 [They made soup with the {plant}. / They ate the {plant} for ten days.] {both}
)";
// clang-format on

/// Cuts `text` at each separator outside of brackets and trims the parts.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else if (c != ' ' || !parts.back().empty()) {
      parts.back() += c;
    }
  }
  for (std::string& part : parts) part.erase(part.find_last_not_of(' ') + 1);
  return parts;
}

struct Rule {
  std::vector<std::string> columns, choices;
  std::vector<std::string> unused;  // the choices left in this story
};

class Generator {
 public:
  Generator() {
    std::istringstream lines{std::string(kGrammar)};
    Rule* rule = nullptr;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      if (line[0] != ' ') {
        const std::size_t name = line.find_first_of(" ("),
                          body = line.find('=');
        rule = &rules_[line.substr(0, name)];
        if (line[name] == '(')
          rule->columns = split(line.substr(name + 1, body - name - 3), ' ');
        line.erase(0, body + 1);
      }
      rule->choices.resize(1);
      rule->choices[0] += line;
    }
    for (auto& [name, r] : rules_) r.choices = split(r.choices[0], '/');
  }

  std::string story() {
    variables_.clear();
    for (auto& [name, rule] : rules_)
      if (name != "story") rule.unused.clear();  // all plots take turns
    std::string text;
    for (const char c : lookup("story")) {  // without needless spaces
      if (c == '~' && text.back() == ' ') text.pop_back();
      if (c != ' ' || (!text.empty() && text.back() > ' '))
        text += c == '~' ? '\n' : c;
    }
    return text + '\n';
  }

 private:
  std::string take(std::vector<std::string>& choices) {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;  // SplitMix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z = ((z ^ (z >> 31)) >> 32) * choices.size() >> 32;
    choices[static_cast<std::size_t>(z)].swap(choices.back());
    const std::string choice = choices.back();
    choices.pop_back();
    return choice;
  }

  std::string lookup(const std::string& name) {
    const auto variable = variables_.find(name);
    if (variable != variables_.end()) return variable->second;
    Rule& rule = rules_.at(name);
    if (rule.unused.empty()) rule.unused = rule.choices;
    return expand(take(rule.unused));
  }

  std::string slot(std::string name) {
    const std::size_t equals = name.find('=');
    if (equals != std::string::npos) {
      const std::string source = name.substr(equals + 1);
      const std::vector<std::string> fields = split(lookup(source), '|');
      variables_[name.erase(equals)] = fields[0];
      for (std::size_t i = 1; i < fields.size(); ++i)
        variables_[name + '.' + rules_.at(source).columns[i - 1]] = fields[i];
      return "";
    }
    const bool capital = name[0] >= 'A' && name[0] <= 'Z';
    if (capital) name[0] = static_cast<char>(name[0] - 'A' + 'a');
    const bool article = name.compare(0, 2, "a ") == 0;
    std::string text = lookup(article ? name.substr(2) : name);
    if (article)
      text = (std::string("aeiou").find(text[0]) < 5 ? "an " : "a ") + text;
    if (capital && text[0] >= 'a' && text[0] <= 'z')
      text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text;
  }

  std::string expand(const std::string& choice) {
    std::string text;
    for (std::size_t i = 0; i < choice.size(); ++i) {
      const bool brace = choice[i] == '{', bracket = choice[i] == '[';
      if (!brace && !bracket) {
        text += choice[i];
        continue;
      }
      const std::size_t end = choice.find(brace ? '}' : ']', i);
      const std::string inner = choice.substr(i + 1, end - i - 1);
      std::vector<std::string> choices = split(inner, '/');
      text += brace ? slot(inner) : expand(take(choices));
      i = end;
    }
    return text;
  }

  std::uint64_t state_ = 1;  // the seed
  std::map<std::string, Rule> rules_;
  std::map<std::string, std::string> variables_;
};

}  // namespace

const std::string& built_in_stories() {
  static const std::string stories = [] {
    Generator generator;
    std::string text = generator.story();
    while (text.size() < 1100000) text += '\n' + generator.story();
    return text;
  }();
  return stories;
}

}  // namespace aft::data
