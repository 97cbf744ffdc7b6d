// What every page of figures has in it: its style and its script.
#pragma once

namespace aft::cli {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace aft::cli
