-- Jobs of 'sbatch --far-memory' wait until 'muninn coordinator' has room for them, or for DEAD_MAN seconds
-- after it was last heard of: then Slurm starts them by itself, with all the memory that was asked for.
local DEAD_MAN, LARGEST = @DEAD_MAN@, @LARGEST@ -- seconds; MiB of the largest node

function slurm_job_submit(job, partitions, uid)
   local env = job.environment
   local far = env and env["_SLURM_SPANK_OPTION_muninn_far_memory"]
   if not far or far == "none" or not far:match("^[%w.]+$") then return slurm.SUCCESS end
   local name = env["_SLURM_SPANK_OPTION_muninn_far_profile"] or ""
   local mem = job.pn_min_memory
   if not mem or mem < 1 or mem > 2 ^ 50 then
      slurm.log_user("--far-memory needs --mem: how much does the job need in all, near and far?")
      return slurm.ERROR
   end
   local begin = job.begin_time or 0
   -- The coordinator binds the job to a node; these are those that the user wants.
   local nodes = (job.req_nodes or ""):match("^[%w._,%[%]-]+$") or ""
   job.admin_comment = string.format("muninn:mem=%d;far=%s;begin=%d;profile=%s;nodes=%s", mem, far, begin,
      name:match("^[%w._-]+$") or "", nodes)
   env["MUNINN_PEAK"] = string.format("%dMiB", mem)
   job.pn_min_memory = math.min(mem, LARGEST)
   job.begin_time = math.max(begin, os.time() + DEAD_MAN)
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
