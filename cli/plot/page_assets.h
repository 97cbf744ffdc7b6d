// The style sheet and the script embedded in every page of figures.
#pragma once

namespace aft::cli {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace aft::cli
