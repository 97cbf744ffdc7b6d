#!/bin/sh
# How many compilers to run at once: one a core, but no more than the free memory holds (a file with torch takes 1 GB).
cores=$(nproc)
memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
jobs=$((cores < ${memory:-1} ? cores : ${memory:-1}))
echo $((jobs < 1 ? 1 : jobs))
