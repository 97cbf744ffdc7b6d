// The variables of launchers.
#include "aft/train/distributed/launch_environment.h"

#include <gtest/gtest.h>

#include <map>

namespace aft::train {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment environment(const Variables& variables) {
  return parse_launch_environment([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

void expect(const LaunchEnvironment& w, int rank, int size, int local,
            const std::string& address, int port) {
  EXPECT_EQ(w.rank, rank);
  EXPECT_EQ(w.size, size);
  EXPECT_EQ(w.local_rank, local);
  EXPECT_EQ(w.address, address);
  EXPECT_EQ(w.port, port);
}

TEST(LaunchEnvironment, IsOneProcessByDefault) {
  const LaunchEnvironment w = environment({});
  EXPECT_EQ(w.rank, 0);
  EXPECT_EQ(w.size, 1);
  EXPECT_FALSE(w.hosted);
  // Slurm's interactive shells have these but no step.
  EXPECT_EQ(environment({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).size,
            1);
}

TEST(LaunchEnvironment, Torchrun) {
  const Variables v = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "node7"},
                       {"MASTER_PORT", "1234"}};
  expect(environment(v), 5, 8, 1, "node7", 1234);
  EXPECT_EQ(environment(v).local_size, 2);
  Variables agent = v;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  agent["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_TRUE(environment(agent).hosted);
  EXPECT_EQ(environment(agent).restarts, 3);
  // Takes precedence over Slurm's, inside of which it may run.
  agent["SLURM_PROCID"] = "0", agent["SLURM_NTASKS"] = "2";
  agent["SLURM_STEP_NODELIST"] = "a";
  EXPECT_EQ(environment(agent).rank, 5);
}

TEST(LaunchEnvironment, Slurm) {
  Variables v = {{"SLURM_PROCID", "3"},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_STEP_NODELIST", "gpu[007-009,12],x1"},
                 {"SLURM_JOB_ID", "30001"}};
  expect(environment(v), 3, 4, 1, "gpu007", 15017);
  v["SLURM_STEP_ID"] = "3";  // another step of the same job
  expect(environment(v), 3, 4, 1, "gpu007", 15020);
  v["MASTER_ADDR"] = "elsewhere", v["MASTER_PORT"] = "99";
  expect(environment(v), 3, 4, 1, "elsewhere", 99);
}

TEST(LaunchEnvironment, Mpi) {
  Variables v = {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  expect(environment(v), 1, 2, 1, "127.0.0.1", 29500);
  v["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THROW(environment(v), LaunchError);
  v["MASTER_ADDR"] = "first";
  EXPECT_EQ(environment(v).address, "first");
  expect(environment({{"PMI_RANK", "2"},
                      {"PMI_SIZE", "3"},
                      {"MPI_LOCALRANKID", "2"},
                      {"MPI_LOCALNRANKS", "3"}}),
         2, 3, 2, "127.0.0.1", 29500);
}

TEST(LaunchEnvironment, MpiInsideOfSlurm) {
  // mpirun's daemon was started by srun, one on each node.
  Variables v = {{"SLURM_PROCID", "1"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_NODELIST", "a[1-2]"},
                 {"MASTER_ADDR", "a1"}};
  Variables open = v, hydra = v;
  open["OMPI_COMM_WORLD_RANK"] = "5", open["OMPI_COMM_WORLD_SIZE"] = "8";
  open["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  EXPECT_EQ(environment(open).rank, 5);
  EXPECT_EQ(environment(open).size, 8);
  EXPECT_EQ(environment(open).local_size, 4);
  hydra["PMI_RANK"] = "5", hydra["PMI_SIZE"] = "8";
  hydra["MPI_LOCALNRANKS"] = "4";
  EXPECT_EQ(environment(hydra).rank, 5);
  // srun may set PMI's variables too; its own take precedence.
  v["PMI_RANK"] = "1", v["PMI_SIZE"] = "2", v.erase("MASTER_ADDR");
  expect(environment(v), 1, 2, 0, "a1", 15000);
}

TEST(LaunchEnvironment, FirstNode) {
  EXPECT_EQ(first_node("a"), "a");
  EXPECT_EQ(first_node("a,b[1-2]"), "a");
  EXPECT_EQ(first_node("a[3-5,9],b"), "a3");
  EXPECT_EQ(first_node("a[10]"), "a10");
  EXPECT_EQ(first_node("a[10"), "a10");
  EXPECT_EQ(first_node(""), "");
}

TEST(LaunchEnvironment, ErrorsNameTheVariable) {
  const Variables good = {{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "1"}};
  EXPECT_EQ(environment(good).rank, 1);
  const auto refused = [&](const std::string& name, const std::string& value,
                           const std::string& words) {
    Variables bad = good;
    bad[name] = value;
    try {
      environment(bad);
      FAIL() << name << "=" << value;
    } catch (const LaunchError& e) {
      EXPECT_NE(std::string(e.what()).find("the variable " + name),
                std::string::npos)
          << e.what();
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos)
          << e.what();
    }
  };
  refused("RANK", "2", "from 0 to 1, got '2'");
  refused("RANK", "-1", "got '-1'");
  refused("RANK", "", "got ''");
  refused("RANK", "1x", "got '1x'");
  refused("WORLD_SIZE", "0", "from 1 to");
  refused("WORLD_SIZE", "99999999999999999999", "from 1 to");
  refused("LOCAL_RANK", "two", "got 'two'");
  refused("MASTER_PORT", "65536", "from 1 to 65535");
  refused("MASTER_ADDR", "", "the address of rank 0");
  Variables half = good;
  half.erase("WORLD_SIZE");
  EXPECT_THROW(environment(half), LaunchError);
  half = good;
  half.erase("RANK");
  EXPECT_THROW(environment(half), LaunchError);
}

}  // namespace
}  // namespace aft::train
