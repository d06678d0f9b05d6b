-- The statements of SBCLUSTER-09, as the specification has them, in its order.

-- section 4.1
CREATE JOB sweep_tables
  CLASS = LOCAL_SAFE
  PARTITION BY ALL_SHARDS
  SCHEDULE = '0 2 * * *'  -- Daily at 2 AM
  AS 'SWEEP ANALYZE';             -- Native sweep/GC command (VACUUM alias available)

-- section 4.2
CREATE JOB cluster_health_check
  CLASS = LEADER_ONLY
  SCHEDULE = '*/5 * * * *'  -- Every 5 minutes
  AS 'SELECT check_cluster_health()';

-- section 4.3
CREATE JOB monthly_compliance_report
  CLASS = QUORUM_REQUIRED
  SCHEDULE = '0 0 1 * *'  -- First day of month at midnight
  AS 'CALL generate_compliance_report()';

-- section 7.1
CREATE JOB analyze_all_tables
  CLASS = LOCAL_SAFE
  PARTITION BY ALL_SHARDS
  SCHEDULE = '0 3 * * *'
  AS 'ANALYZE TABLES';

-- section 7.2
CREATE JOB rebuild_shard_001_indexes
  CLASS = LOCAL_SAFE
  PARTITION BY SHARD 'shard_001'
  SCHEDULE = '0 4 * * 0'  -- Weekly on Sunday
  AS 'REINDEX DATABASE';

-- section 7.3
CREATE JOB process_customer_orders
  CLASS = LOCAL_SAFE
  PARTITION BY SHARD_KEY(customer_id)
  SCHEDULE = '*/10 * * * *'
  AS 'CALL process_pending_orders(:customer_id)';

-- section 8.1
CREATE JOB extract_daily_data
  SCHEDULE = '0 1 * * *'
  AS 'CALL extract_daily_sales()';

CREATE JOB transform_daily_data
  DEPENDS ON extract_daily_data
  SCHEDULE = '0 2 * * *'
  AS 'CALL transform_sales_data()';

CREATE JOB load_daily_data
  DEPENDS ON transform_daily_data
  SCHEDULE = '0 3 * * *'
  AS 'CALL load_sales_to_warehouse()';

-- section 9.1
-- Create a daily backup job
CREATE JOB daily_cluster_backup
  CLASS = LEADER_ONLY
  SCHEDULE = '0 2 * * *'
  DESCRIPTION = 'Daily cluster backup'
  AS 'BACKUP CLUSTER TO backup_target_s3';

-- section 9.2
SELECT
    job_uuid,
    job_name,
    job_class,
    schedule_type,
    cron_expression,
    next_run_time,
    state
FROM sys.jobs
ORDER BY next_run_time ASC;

-- section 9.3
SELECT
    job_run_uuid,
    job_name,
    scheduled_time,
    started_at,
    completed_at,
    state,
    result_message,
    rows_affected
FROM sys.job_runs
WHERE job_uuid = 'job_uuid_here'
ORDER BY started_at DESC
LIMIT 10;

-- section 9.4
ALTER JOB daily_cluster_backup SET STATE = PAUSED;

-- section 9.5
ALTER JOB daily_cluster_backup SET STATE = ENABLED;

-- section 9.6
DROP JOB daily_cluster_backup;

-- section 12.1
CREATE JOB daily_sweep
  CLASS = LOCAL_SAFE
  PARTITION BY ALL_SHARDS
  SCHEDULE = '0 2 * * *'
  DESCRIPTION = 'Daily sweep/GC + analyze on all shards'
  AS 'SWEEP ANALYZE';             -- Native sweep/GC command (VACUUM alias available)

-- section 12.2
CREATE JOB hourly_sales_report
  CLASS = LEADER_ONLY
  SCHEDULE = '0 * * * *'  -- Every hour at :00
  DESCRIPTION = 'Generate hourly sales report'
  AS 'CALL generate_hourly_sales_report()';

-- section 12.3
-- Step 1: Extract
CREATE JOB etl_extract
  CLASS = LEADER_ONLY
  SCHEDULE = '0 1 * * *'
  AS 'CALL extract_source_data()';

-- Step 2: Transform (depends on extract)
CREATE JOB etl_transform
  CLASS = LEADER_ONLY
  DEPENDS ON etl_extract
  SCHEDULE = '0 2 * * *'
  AS 'CALL transform_extracted_data()';

-- Step 3: Load (depends on transform)
CREATE JOB etl_load
  CLASS = LEADER_ONLY
  DEPENDS ON etl_transform
  SCHEDULE = '0 3 * * *'
  AS 'CALL load_transformed_data()';

-- section 12.4
CREATE JOB process_customer_reports
  CLASS = LOCAL_SAFE
  PARTITION BY SHARD_KEY(customer_id)
  SCHEDULE = '0 0 * * *'
  AS 'CALL process_customer_monthly_report(:customer_id)';
