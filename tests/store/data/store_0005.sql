BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'old');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'tempopt','{"metric": "val_loss"}');
CREATE TABLE tempopt_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tempopt_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tempopt_alembic_version" VALUES('0005');
CREATE TABLE tempopt_job (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	study VARCHAR(255) NOT NULL, 
	launcher VARCHAR(255) NOT NULL, 
	id VARCHAR(255) NOT NULL, 
	options TEXT NOT NULL, 
	created DATETIME NOT NULL
);
CREATE TABLE tempopt_log (
	ticket_id INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	agent VARCHAR(255) NOT NULL, 
	text TEXT NOT NULL, 
	written DATETIME NOT NULL, 
	PRIMARY KEY (ticket_id, attempt), 
	CONSTRAINT tempopt_log_ticket FOREIGN KEY(ticket_id) REFERENCES tempopt_ticket (id)
);
CREATE TABLE tempopt_measurement (
	ticket_id INTEGER NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	step BIGINT NOT NULL, 
	value DOUBLE, 
	PRIMARY KEY (ticket_id, name, step), 
	CONSTRAINT tempopt_measurement_ticket FOREIGN KEY(ticket_id) REFERENCES tempopt_ticket (id)
);
INSERT INTO "tempopt_measurement" VALUES(1,'report',10,0.5);
INSERT INTO "tempopt_measurement" VALUES(3,'report',10,0.9);
CREATE TABLE tempopt_study (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(255) NOT NULL, 
	spec TEXT NOT NULL, 
	spec_hash VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created DATETIME NOT NULL, version INTEGER DEFAULT 0 NOT NULL, checkpoints TEXT, 
	CONSTRAINT tempopt_study_name UNIQUE (name)
);
INSERT INTO "tempopt_study" VALUES(1,'old','{"study": {"name": "old"}}','hash','running','2026-11-22 06:33:36.829519',1,NULL);
CREATE TABLE tempopt_ticket (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	study_id INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	stage INTEGER NOT NULL, 
	arm VARCHAR(16) NOT NULL, 
	number INTEGER NOT NULL, 
	candidate INTEGER, 
	pair INTEGER, 
	seed BIGINT NOT NULL, 
	parameters TEXT, 
	trial_number INTEGER, 
	state VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	attempt INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	value DOUBLE, 
	diverged_at BIGINT, 
	error TEXT, 
	agent VARCHAR(255), 
	seconds DOUBLE NOT NULL, 
	steps BIGINT, 
	total_steps BIGINT, 
	code TEXT, 
	started DATETIME, 
	finished DATETIME, trial_id INTEGER, round INTEGER DEFAULT 0 NOT NULL, sampled TEXT, lease DOUBLE, checkpoints TEXT, checkpoint_seconds DOUBLE DEFAULT 0 NOT NULL, alone BOOLEAN DEFAULT 0 NOT NULL, gpu_seconds DOUBLE DEFAULT 0 NOT NULL, peak_memory BIGINT, machine VARCHAR(255), device VARCHAR(255), forked_from INTEGER, forked_at BIGINT, 
	CONSTRAINT tempopt_ticket_study FOREIGN KEY(study_id) REFERENCES tempopt_study (id), 
	CONSTRAINT tempopt_ticket_number UNIQUE (study_id, kind, number)
);
INSERT INTO "tempopt_ticket" VALUES(1,1,'search',2,'search',0,NULL,NULL,9223372036854775807,'{"temperature_init": 0.5, "schedule": "cosine"}',0,'done','complete',1,0,0.7,NULL,NULL,'far:1:2:3',2.5,100,100,'c','2026-11-22 06:33:36.898430','2026-11-22 06:33:36.931708',1,0,'{"x": 0.5}',NULL,'[{"step": 20, "url": "file:///runs/step-20.ckpt", "digest": "digest of 20", "size": 10000000000, "shared": true}]',0.0,0,0.0,NULL,'node7','NVIDIA H200 (cuda:0)',NULL,NULL);
INSERT INTO "tempopt_ticket" VALUES(2,1,'search',2,'search',1,NULL,NULL,9223372036854775806,'{"temperature_init": 0.5, "schedule": "cosine"}',1,'done','complete',1,0,0.6,NULL,NULL,'far:1:2:3',2.5,100,100,'c','2026-11-22 06:33:36.975115','2026-11-22 06:33:36.994269',2,0,'{"x": 0.5}',NULL,NULL,0.0,0,0.0,NULL,'node7','NVIDIA H200 (cuda:0)',1,20);
INSERT INTO "tempopt_ticket" VALUES(3,1,'search',2,'search',2,NULL,NULL,9223372036854775805,'{"temperature_init": 0.5, "schedule": "cosine"}',2,'done','pruned',1,0,0.9,NULL,NULL,'far:1:2:3',0.5,10,NULL,NULL,'2026-11-22 06:33:37.022868','2026-11-22 06:33:37.038460',3,0,'{"x": 0.5}',NULL,NULL,0.0,0,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "tempopt_ticket" VALUES(4,1,'search',2,'search',3,NULL,NULL,9223372036854775804,'{"temperature_init": 0.5, "schedule": "cosine"}',3,'running',NULL,1,0,NULL,NULL,NULL,'far:1:2:3',0.0,NULL,NULL,NULL,'2026-11-22 06:33:37.070886',NULL,4,0,'{"x": 0.5}',1.79533281707101464268e+09,'[{"step": 20, "url": "file:///runs/step-20.ckpt", "digest": "digest of 20", "size": 10000000000, "shared": false}, {"step": 10, "url": "file:///runs/step-10.ckpt", "digest": "digest of 10", "size": 10000000000, "shared": false}]',0.0,0,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "tempopt_ticket" VALUES(5,1,'search',2,'search',4,NULL,NULL,9223372036854775803,'{"temperature_init": 0.5, "schedule": "cosine"}',4,'running',NULL,1,0,NULL,NULL,NULL,'far:1:2:3',0.0,NULL,NULL,NULL,'2026-11-22 06:33:37.102776',NULL,5,0,'{"x": 0.5}',1795332817.103,NULL,0.0,0,0.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "tempopt_ticket" VALUES(6,1,'search',2,'search',5,NULL,NULL,9223372036854775802,NULL,NULL,'waiting',NULL,0,0,NULL,NULL,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0.0,0,0.0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_intermediate_values" VALUES(1,1,10,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(2,3,10,0.9,'FINITE');
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(2,2,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(3,3,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(4,4,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(5,5,'x',0.5,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'artifacts:74656d70-6f70-8074-8000-000000000001','"{\"artifact_id\": \"74656d70-6f70-8074-8000-000000000001\", \"filename\": \"curve.svg\", \"mimetype\": \"image/svg+xml\", \"encoding\": null}"');
INSERT INTO "trial_system_attributes" VALUES(2,2,'artifacts:74656d70-6f70-8074-8000-000000000002','"{\"artifact_id\": \"74656d70-6f70-8074-8000-000000000002\", \"filename\": \"curve.svg\", \"mimetype\": \"image/svg+xml\", \"encoding\": null}"');
INSERT INTO "trial_system_attributes" VALUES(3,3,'artifacts:74656d70-6f70-8074-8000-000000000003','"{\"artifact_id\": \"74656d70-6f70-8074-8000-000000000003\", \"filename\": \"curve.svg\", \"mimetype\": \"image/svg+xml\", \"encoding\": null}"');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'tempopt:ticket','1');
INSERT INTO "trial_user_attributes" VALUES(2,2,'tempopt:ticket','2');
INSERT INTO "trial_user_attributes" VALUES(3,3,'tempopt:ticket','3');
INSERT INTO "trial_user_attributes" VALUES(4,4,'tempopt:ticket','4');
INSERT INTO "trial_user_attributes" VALUES(5,5,'tempopt:ticket','5');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,0.7,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,0.6,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,0.9,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 06:33:36.911164','2026-11-22 06:33:36.955093');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 06:33:36.989075','2026-11-22 06:33:37.002245');
INSERT INTO "trials" VALUES(3,2,1,'PRUNED','2026-11-22 06:33:37.030945','2026-11-22 06:33:37.049895');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-22 06:33:37.078652',NULL);
INSERT INTO "trials" VALUES(5,4,1,'RUNNING','2026-11-22 06:33:37.114926',NULL);
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE INDEX tempopt_ticket_next ON tempopt_ticket (study_id, state, stage, number);
CREATE INDEX tempopt_job_study ON tempopt_job (study);
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tempopt_study',1);
INSERT INTO "sqlite_sequence" VALUES('tempopt_ticket',6);
COMMIT;
